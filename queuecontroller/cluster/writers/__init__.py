"""Writes to the API server what the book decided."""
