"""Benchmarks that compare: with and without us, in one run. `make bench` writes build/bench.json."""
