"""The gRPC services for nodes and users, and their client."""
