"""Tests, demo and benchmarks of the whole product; `make test` runs those that pytest collects."""
