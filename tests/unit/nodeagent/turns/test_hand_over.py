"""Regimes that follow each other, and grants that come and go, in virtual time (machine.py)."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.ports.regions import TurnMode
from tests.unit.nodeagent.turns.machine import MS, Machine, tenant

S = 1000 * MS
OVER_NS = 2 * S
LOOK_NS = 50 * MS


def shares_over_time(machine: Machine, for_ns: int) -> dict[str, list[float]]:
    """Each grant's share over every 2 s, 50 ms apart."""
    seen: dict[str, list[int]] = {name: [used] for name, used in machine.used_ns.items()}
    for _ in range(for_ns // LOOK_NS):
        machine.run(LOOK_NS)
        for name, used in machine.used_ns.items():
            seen[name].append(used)
    over = OVER_NS // LOOK_NS
    return {
        name: [(b - a) / OVER_NS for a, b in zip(used, used[over:], strict=False)]
        for name, used in seen.items()
    }


@settings(max_examples=8, deadline=None)
@given(
    percents=st.sampled_from([(30, 70), (50, 50), (5, 95), (20, 30, 50), (12, 13, 25, 50)]),
    who=st.integers(0, 3),
    rest_ms=st.integers(5, 20),
    seed=st.integers(0, 2**32),
)
def test_a_hand_over_between_regimes_changes_no_share_over_any_two_seconds(
    percents: tuple[int, ...], who: int, rest_ms: int, seed: int
) -> None:
    """A grant rests for a moment, is without a window for a while, and then has one again. While that took a second,
    the slices' changes of contexts cost the larger ones up to 6.4 points."""
    everybody = [tenant(f"g{i}", percent) for i, percent in enumerate(percents)]
    resting = everybody[who % len(everybody)].grant
    rest_at = 3 * S + random.Random(seed).randrange(S // 5)
    machine = Machine(
        everybody,
        lambda name, at: name != resting or not rest_at <= at < rest_at + rest_ms * MS,
    )
    machine.run(S)
    assert {turn.mode for turn in machine.turns.values()} == {TurnMode.LEASE}
    shares = shares_over_time(machine, 5 * S)
    assert {turn.mode for turn in machine.turns.values()} == {TurnMode.LEASE}
    for name, over in shares.items():
        assert max(over) - min(over) <= 0.03, (name, min(over), max(over))


PERCENTS = (5, 10, 10, 12, 13, 15, 15, 20)


def phases(chance: random.Random, until_ns: int) -> list[int]:
    """When a grant's work begins, ends, begins again, ...: 4 s of work and 2 s of rest on average."""
    moments: list[int] = []
    at = 0
    while at < until_ns:
        for mean_s in (2, 4):
            at += int(chance.expovariate(1 / mean_s) * S)
            moments.append(at)
    return moments


@pytest.mark.parametrize("seed", [1, 2])
def test_of_eight_grants_that_come_and_go_none_starves_and_the_gpu_is_used(seed: int) -> None:
    """A minute. It was 90 % while a grant had no window for its first second, as slices alone give."""
    chance = random.Random(seed)
    everybody = [tenant(f"g{i}", percent) for i, percent in enumerate(PERCENTS)]
    moments = {str(one.grant): phases(chance, 60 * S) for one in everybody}
    machine = Machine(everybody, lambda name, at: bisect_right(moments[name], at) % 2 == 1)
    seen = []
    for _ in range(60):
        before = dict(machine.used_ns)
        machine.run(S)
        seen.append({name: used - before[name] for name, used in machine.used_ns.items()})
    assert sum(machine.used_ns.values()) >= 0.95 * machine.wanted_ns
    hungry = 0
    for second, (first, then) in enumerate(pairwise(seen)):
        for one, percent in zip(everybody, PERCENTS, strict=True):
            begun = bisect_right(moments[one.grant], second * S)
            if begun % 2 and bisect_right(moments[one.grant], (second + 2) * S) == begun:
                hungry += 1
                share = (first[one.grant] + then[one.grant]) / (2 * S)
                assert share >= 0.75 * percent / 100, (one.grant, second, share)
    assert hungry > 100, "grants with work for two seconds"
