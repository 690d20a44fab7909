"""Beside the real Kueue, and after it."""
