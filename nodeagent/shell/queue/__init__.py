"""The desk at the queue."""
