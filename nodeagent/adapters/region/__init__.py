"""Grants' shared pages on tmpfs, and the registration of the processes that map them."""
