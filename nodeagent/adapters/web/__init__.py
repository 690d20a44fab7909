"""Small HTTP servers in the daemon's event loop: /metrics, and the probes."""
