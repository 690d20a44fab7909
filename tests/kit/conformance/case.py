"""Outcome of one conformance case, and the comparison of amounts and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Case = Mapping[str, Any]
"""One case as it stands in its file: JSON, so of any shape until it is read."""


class Verdict(StrEnum):
    AGREED = "equal"
    DIFFERS = "differs"
    EXCLUDED = "explained"


@dataclass(frozen=True, slots=True)
class Outcome:
    verdict: Verdict
    details: tuple[str, ...] = ()


def excluded(reason: str) -> Outcome:
    return Outcome(Verdict.EXCLUDED, (reason,))


class Comparison:
    """Collects differences between what was recorded and what the engine said."""

    def __init__(self) -> None:
        self._differences: list[str] = []

    def same(self, what: str, recorded: object, ours: object) -> None:
        if recorded != ours:
            self._differences.append(f"{what}: recorded {recorded!r}, ours {ours!r}")

    def outcome(self) -> Outcome:
        if self._differences:
            return Outcome(Verdict.DIFFERS, tuple(self._differences))
        return Outcome(Verdict.AGREED)
