"""Whose turn it is on each GPU, and for how long."""
