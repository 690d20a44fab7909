"""The queue's decisions on this node."""
