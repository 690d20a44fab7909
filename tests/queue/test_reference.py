"""New scenarios, played by the engine and by a plain queue written from Kueue's documentation: second by second the same."""

from __future__ import annotations

from collections import Counter

import pytest

from queuecontroller.testing.traces import Player, compare

from .reference import Reference, scenario

FEW, MANY, PART = 60, 3500, 500


def differences(seeds: range) -> tuple[list[str], Counter[str], int]:
    """What differs, how much of what happened, and how many runs could only be compared in part."""
    wrong: list[str] = []
    happened: Counter[str] = Counter()
    cut = 0
    for seed in seeds:
        made = scenario(seed)
        plain, ours = Reference(made).play(), Player(made).play()
        assert ours.livelock_at is None, f"seed {seed} never comes to rest"
        cut += plain.livelock_at is not None
        for events in plain.events.values():
            happened.update(operation for operation, _, _ in events)
        found = compare(plain, ours)
        if found is not None:
            wrong.append("\n  ".join((f"seed {seed}", *found.lines())))
    return wrong, happened, cut


def check(seeds: range) -> None:
    wrong, happened, cut = differences(seeds)
    assert not wrong, "\n".join(wrong)  # "Kueue" in it is the plain queue
    assert cut < len(seeds) // 10
    assert happened["A"] > 5 * len(seeds), "hardly anybody started: nothing was tried"
    assert happened["P"] > len(seeds) // 10


def test_runs_are_those_of_the_plain_queue() -> None:
    check(range(FEW))


@pytest.mark.full
@pytest.mark.parametrize("part", range(MANY // PART))
def test_many_runs_are_those_of_the_plain_queue(part: int) -> None:
    check(range(FEW + part * PART, FEW + (part + 1) * PART))
