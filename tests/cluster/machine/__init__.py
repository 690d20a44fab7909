"""The machine that a node runs on: its namespaces, its control groups, its first process, its settings."""
