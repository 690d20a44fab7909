"""How the queue becomes part of a cluster: what it may do there, and whom the API server asks."""
