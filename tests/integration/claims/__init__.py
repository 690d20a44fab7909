"""Claims of dynamic resource allocation on a whole daemon."""
