"""Random sequences of events under laws that are checked after every step. A test suite plays a few of them, and a person a
thousand: `python -m MODULE --count 1000`; a failure names its seed, and `--first SEED --count 1` repeats it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest

from queuecontroller.scheduler.model.flavor_resources import Usage
from queuecontroller.scheduler.quota.tree import QuotaNode


class Broken(AssertionError):
    """Raised for a law that does not hold."""


class RandomSequence(Protocol):
    kills: int
    """Kills of leaders and nodes so far."""

    def play(self) -> None:
        """Take all steps. Raises Broken."""

    def moves_made(self) -> int:
        """How often a workload was moved to other GPUs."""


T = TypeVar("T", bound=RandomSequence)


def play(sequence: Callable[[int], T], seed: int) -> T:
    """Play the sequence of a seed. Raises Broken, with the seed."""
    made = sequence(seed)
    try:
        made.play()
    except AssertionError as error:
        raise Broken(f"seed {seed}: {error}") from error
    return made


def main(description: str | None, sequence: Callable[[int], RandomSequence]) -> int:
    """Play as many as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    moves = kills = broken = 0
    for seed in range(options.first, options.first + options.count):
        try:
            made = play(sequence, seed)
        except AssertionError as error:
            broken += 1
            print(error, file=sys.stderr, flush=True)
            continue
        moves += made.moves_made()
        kills += made.kills
    print(f"{options.count} sequences: {kills} kills, {moves} moves, {broken} broken")
    return 1 if broken else 0


def forget_quota_once(monkeypatch: pytest.MonkeyPatch, after: int = 20) -> None:
    """Have the scheduler not return the quota of one workload."""
    remove = QuotaNode.remove_usage
    skipped = iter([False] * after + [True])

    def forgetful(node: QuotaNode, usage: Usage) -> None:
        if not next(skipped, False):
            remove(node, usage)

    monkeypatch.setattr(QuotaNode, "remove_usage", forgetful)
