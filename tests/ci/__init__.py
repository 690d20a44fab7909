"""Continuous integration: runs the suites, runs what failed a second time, and decides whether the whole is green."""
