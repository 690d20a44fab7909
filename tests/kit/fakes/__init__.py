"""Fakes that behave: each implements a port over plain memory, refuses what the real thing
refuses, and can be set to fail in the ways the real thing fails."""
