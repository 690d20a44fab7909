"""Grants whose memory goes to the host and comes back, on a node with the simulated driver."""
