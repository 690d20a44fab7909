"""Pending workloads in the order of each ClusterQueue, and the cohort trees to evaluate again."""
