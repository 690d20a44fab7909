"""Dynamic resource allocation (DRA): its values and ports."""
