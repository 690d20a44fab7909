"""Commands and manifests of users, against a real API server."""
