"""Time, as an argument for all who decide by it."""

from __future__ import annotations

from typing import Protocol

from nodeagent.units import (
    Nanoseconds,
)


class Clock(Protocol):
    def monotonic_ns(self) -> Nanoseconds:
        """CLOCK_MONOTONIC: the tenants' scale."""

    def unix_s(self) -> float: ...
