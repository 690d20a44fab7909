"""Benchmarks of the queue: its engine, its placement and its service."""
