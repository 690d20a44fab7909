"""What would happen: manifests and a trace of arrivals through the engine, in virtual time."""
