"""HTTP as far as metrics and probes need it, in the event loop of the service."""
