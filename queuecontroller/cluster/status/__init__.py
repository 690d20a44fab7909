"""What the objects' status and events say: no I/O."""
