"""Nodes: their sessions, their decisions, and the free GPUs on them."""
