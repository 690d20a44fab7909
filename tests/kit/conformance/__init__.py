"""Checks that need the engine and the manifests together; nothing in production imports this."""
