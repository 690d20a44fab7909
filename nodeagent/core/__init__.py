"""Decisions only: events in, instructions out; no socket, file, thread, clock or logger."""
