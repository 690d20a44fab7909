"""Simulation: manifests and a trace of arrivals run through the scheduler in virtual time."""
