"""What is counted while deciding, for /metrics: plain numbers, no client library."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

SECONDS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 43200, 86400)
"""Bounds for waiting times, from "at once" to a day."""
CYCLE_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


@dataclass(slots=True)
class Histogram:
    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the exposition format has them."""
        counts = self.counts or [0] * (len(self.bounds) + 1)
        running, out = 0, []
        for bound, count in zip((*self.bounds, None), counts, strict=True):
            running += count
            out.append(("+Inf" if bound is None else f"{bound:g}", float(running)))
        return out


@dataclass(slots=True)
class Figures:
    attempts: Counter[str] = field(default_factory=Counter)
    """Cycles with work by result: success or inadmissible, Kueue's words."""
    cycle: dict[str, Histogram] = field(default_factory=dict)
    reserved: Counter[str] = field(default_factory=Counter)
    admitted: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)
    evicted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By ClusterQueue and reason."""
    preempted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the preemptor's ClusterQueue and reason."""
    preemption_turns: Counter[str] = field(default_factory=Counter)
    """By the preemptor's ClusterQueue: two preempted each other again after they had too often."""
    reserve_wait: dict[str, Histogram] = field(default_factory=dict)
    admit_wait: dict[str, Histogram] = field(default_factory=dict)
    recent: dict[str, deque[int]] = field(default_factory=dict)
    """Times of the last admissions by ClusterQueue, for estimates."""

    def admission(self, queue: str, waited_s: float, now_ns: int) -> None:
        self.admitted[queue] += 1
        self.admit_wait.setdefault(queue, Histogram()).observe(waited_s)
        self.recent.setdefault(queue, deque(maxlen=64)).append(now_ns)

    def estimate_s(self, queue: str, position: int, now_ns: int) -> float | None:
        """Until the workload at `position` is admitted, if things go on as they did lately; None
        without at least two admissions to go by."""
        times = self.recent.get(queue)
        if position < 1 or times is None or len(times) < 2:
            return None
        # Silence since the last admission counts: a queue that stands still gets no better.
        return (now_ns - times[0]) / len(times) * position / 1e9
