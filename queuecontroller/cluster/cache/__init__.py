"""What the API server has, and what it means for the queue: no I/O."""
