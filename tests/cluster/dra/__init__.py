"""Claims on the test cluster."""
