"""The controller's adapters: database, gRPC, HTTP, TLS files."""
