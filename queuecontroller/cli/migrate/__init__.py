"""Import and export of queues: what would change, and what cannot be carried over.

`clusters` and `cluster` talk to an API server; every other module does no I/O.
"""
