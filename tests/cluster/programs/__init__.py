"""What a cluster is made of: built once from pinned sources, packed and signed."""
