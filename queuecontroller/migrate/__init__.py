"""From one queue to another: what would change, and what cannot be carried. No I/O but `cluster`.

A queue is a running Kueue, our own mode kubernetes (both are objects in an API server), or the
standalone service.
"""
