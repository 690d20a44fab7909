"""What people open and type, against a real API server."""
