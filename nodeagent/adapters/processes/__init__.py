"""Processes and cgroups: who they are, and holding them."""
