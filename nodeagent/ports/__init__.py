"""Ports of the daemon: one Protocol for each outside system, with the plain values that cross it; a
file for each subject.

Adapters implement them, `tests.kit.fakes` has fakes that behave, and the core sees only the values.
`None` always means "not reported".
"""
