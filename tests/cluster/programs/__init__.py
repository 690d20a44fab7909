"""Programs of a test cluster: built once from pinned sources, packed and signed."""
