"""Cache of the API server's objects, and the queue's view of them: no I/O."""
