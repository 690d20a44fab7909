"""A finding: an error or warning, its place, and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    ERROR = "error"
    """Something here can never work as written."""
    WARNING = "warning"
    """It works, but perhaps not as intended."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    rule: str
    file: str
    line: int
    """Line of the field, or of its parent if the field is missing; 0 if not known."""
    object: str
    """Kind/name, with the namespace where there is one."""
    field: str
    text: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "severity": str(self.severity),
            "rule": self.rule,
            "file": self.file,
            "line": self.line,
            "object": self.object,
            "field": self.field,
            "text": self.text,
            "fix": self.fix,
        }
