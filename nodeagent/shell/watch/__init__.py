"""Detects use of the GPUs around the limits, and contains it."""
