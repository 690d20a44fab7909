"""Import and export of queues: plans the changes, and reports objects that cannot be imported.

`clusters` and `cluster` call an API server; every other module does no I/O.
"""
