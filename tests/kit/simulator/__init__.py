"""Programs that talk to the simulated driver: their processes, and the types of its calls."""
