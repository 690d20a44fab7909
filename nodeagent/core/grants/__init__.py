"""Grants: the book, placement, lending and spilling, and tenants' verified usage."""
