"""Builds the daemon's parts in order and ties them together: all adapters are known here alone."""
