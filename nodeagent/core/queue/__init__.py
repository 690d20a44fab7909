"""The queue controller's decisions on this node."""
