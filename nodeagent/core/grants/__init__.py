"""Grants: who holds what, who waits, and what tenants' figures are worth."""
