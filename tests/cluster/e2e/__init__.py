"""Scenarios on a whole node, in the order of conftest.py."""
