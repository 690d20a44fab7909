"""Reconcilers: suspend, start and stop jobs and pods as their Workloads require."""
