"""Time as an argument for all decisions that depend on it."""

from __future__ import annotations

from typing import Protocol

from nodeagent.units import (
    Nanoseconds,
)


class Clock(Protocol):
    def monotonic_ns(self) -> Nanoseconds:
        """CLOCK_MONOTONIC, which tenants also use."""

    def unix_s(self) -> float: ...
