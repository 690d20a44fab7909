"""The world as the daemon needs it: one Protocol per outside thing, and the plain values that
cross them; a file for each subject.

Adapters give these, `tests.kit.fakes` gives fakes that behave, the core sees only the values.
`None` always means "not reported".
"""
