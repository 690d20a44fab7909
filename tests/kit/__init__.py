"""Helpers of tests, demo and benchmarks: a node, its kubelet, a queue controller, an API server,
clocks, places.

A helper that tests of more than one folder need lives here; one that a single folder needs stands beside its tests. No
module imports from a `test_*` module (tests/unit/test_house.py sees to it).
"""
