"""What is wrong with manifests taken together: things each of them alone cannot show."""

from queuecontroller.lint.findings import Finding, Severity
from queuecontroller.lint.rules import lint

__all__ = ["Finding", "Severity", "lint"]
