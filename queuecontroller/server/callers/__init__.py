"""Callers: connections, authentication, and fair queueing of calls."""
