"""Histograms of durations, in buckets that Prometheus can add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

WAIT_BOUNDS_S: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)
"""Upper bounds from a grant that is made at once to a day of waiting."""
WORK_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds from one ledger commit to a kubelet that has to retry."""


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, int]]:
        """(Upper bound as a label, number of observations up to it); the last bound is +Inf."""
        found, below = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            below += count
            found.append((f"{bound:g}", below))
        return [*found, ("+Inf", below + self._counts[-1])]
