"""The driver's optional features: checkpoints of processes, and memory limits by cgroup."""
