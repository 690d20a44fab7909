"""Sluice's queue against Kueue's semantics: verdicts on objects and whole runs, read from data."""
