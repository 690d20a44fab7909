"""Scenarios that need an API server only."""
