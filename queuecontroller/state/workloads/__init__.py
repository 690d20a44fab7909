"""Workloads on their way from submission to their end."""
