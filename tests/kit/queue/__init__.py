"""The queue of a test: a real controller, and the objects it is configured with."""
