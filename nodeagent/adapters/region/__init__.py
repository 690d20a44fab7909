"""Grants' shared pages on tmpfs, and the registration of those who map them."""
