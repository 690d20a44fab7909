"""Finds errors across a set of manifests that no manifest shows by itself."""

from queuecontroller.cli.lint.findings import Finding, Severity
from queuecontroller.cli.lint.rules import lint

__all__ = ["Finding", "Severity", "lint"]
