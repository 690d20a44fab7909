"""What is wrong with manifests taken together: things each of them alone cannot show."""

from queuecontroller.cli.lint.findings import Finding, Severity
from queuecontroller.cli.lint.rules import lint

__all__ = ["Finding", "Severity", "lint"]
