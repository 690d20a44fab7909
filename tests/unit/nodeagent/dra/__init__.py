"""Claims of DRA."""
