"""What is wrong with manifests taken together: things each of them alone cannot show."""

from .findings import Finding, Severity
from .rules import lint

__all__ = ["Finding", "Severity", "lint"]
