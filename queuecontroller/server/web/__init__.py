"""HTTP: metrics, probes, and the webhooks the API server calls."""
