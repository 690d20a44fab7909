"""New scenarios, played by the engine and by a plain queue written from Kueue's documentation: second by second the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.conformance.traces import Player, compare
from tests.queue.recorded.reference import Reference, reclaiming, scenario

FEW, MANY, PART = 60, 3500, 500

Make = Callable[[int], dict[str, Any]]
KINDS = pytest.mark.parametrize(
    ("make", "reason"),
    [(scenario, "InClusterQueue"), (reclaiming, "InCohortReclamation")],
    ids=["borrowing and own preemption", "reclaiming what was lent"],
)


def differences(make: Make, seeds: range) -> tuple[list[str], Counter[str], int]:
    """Compare runs for each seed: the differences, a count of events by operation or reason, and
    the number of runs that could only be compared in part."""
    wrong: list[str] = []
    happened: Counter[str] = Counter()
    cut = 0
    for seed in seeds:
        made = make(seed)
        plain, ours = Reference(made).play(), Player(made).play()
        assert ours.livelock_at is None, f"seed {seed} never comes to rest"
        cut += plain.livelock_at is not None
        for events in plain.events.values():
            happened.update(why if what == "P" else what for what, _, why in events)
        found = compare(plain, ours)
        if found is not None:
            wrong.append("\n  ".join((f"seed {seed}", *found.lines())))
    return wrong, happened, cut


def check(make: Make, reason: str, seeds: range) -> None:
    wrong, happened, cut = differences(make, seeds)
    assert not wrong, "\n".join(wrong)  # "Kueue" in it is the plain queue
    assert cut < len(seeds) // 10
    assert happened["A"] > 5 * len(seeds), "hardly any workload started: nothing was tried"
    assert happened[reason] > len(seeds) // 10


@KINDS
def test_runs_are_those_of_the_plain_queue(make: Make, reason: str) -> None:
    check(make, reason, range(FEW))


@pytest.mark.full
@KINDS
@pytest.mark.parametrize("part", range(MANY // PART))
def test_many_runs_are_those_of_the_plain_queue(make: Make, reason: str, part: int) -> None:
    check(make, reason, range(FEW + part * PART, FEW + (part + 1) * PART))
