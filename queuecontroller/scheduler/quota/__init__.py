"""Quota: the cohort tree, what each queue holds of it, and what LocalQueues have used over time."""
