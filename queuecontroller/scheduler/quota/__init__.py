"""Quota: the cohort tree, the usage of each queue, and the usage of LocalQueues over time."""
