"""The list of faults and findings, and what checks it."""
