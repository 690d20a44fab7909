"""The queue controller over gRPC."""
