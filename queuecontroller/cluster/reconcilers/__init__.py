"""Holds, starts, stops and forgets what users submit, as their Workloads say."""
