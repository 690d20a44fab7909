"""Queueing decisions as pure functions: no I/O, integer arithmetic, time as an argument."""
