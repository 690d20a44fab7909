"""Pods whose grants take no windows: ranks of a job on several nodes, and trusted groups."""
