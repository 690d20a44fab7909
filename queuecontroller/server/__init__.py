"""The controller's doors to the outside: database, gRPC, HTTP, TLS files."""
