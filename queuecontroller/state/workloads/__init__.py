"""Workloads from submission to their end."""
