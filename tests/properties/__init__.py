"""Properties that hold for every input: reducers, arithmetic, allocation against a model."""
