"""Partial admission: shrinks pod sets with a minCount until a workload fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from queuecontroller.scheduler.model.objects import PodSet

T = TypeVar("T")


def search_counts(
    pod_sets: Sequence[PodSet],
    counts: Sequence[int],
    attempt: Callable[[Sequence[int]], T | None],
) -> T | None:
    """Result of the largest counts that succeed, found by bisection.

    All pod sets shrink in proportion: step i of n takes i/n of each one's range between its count
    and its minimum, rounded down. Success is assumed to be monotone in the step, as in Kueue; where
    it is not, some successful step is found, not the largest.
    """
    room = [
        max(0, count - one.min_count) if one.min_count is not None else 0
        for one, count in zip(pod_sets, counts, strict=True)
    ]
    steps = sum(room)
    if steps == 0:
        return None
    found: T | None = None
    low, high = 0, steps + 1  # the first success is in [low, high); high means none
    while low < high:
        middle = (low + high) // 2
        smaller = [
            count - slack * middle // steps for count, slack in zip(counts, room, strict=True)
        ]
        outcome = attempt(smaller)
        if outcome is not None:
            found, high = outcome, middle
        else:
            low = middle + 1
    return found
