"""Ranks of one job on several nodes, which keep to their own clocks, in virtual time (machine.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.turns.windows import Tenant, own_clock_ppm
from nodeagent.ports.regions import TurnMode
from nodeagent.units import WHOLE_PPM
from tests.unit.nodeagent.turns.machine import MS, RULES, Machine, tenant

S = 1000 * MS
RUN_NS = 2 * S


class Ranks:
    """A job whose ranks compute, then reduce their results together, again and again.

    A rank that is early spins on its GPU until the last one has begun, as a collective's kernel does; after that each
    has to run for a while. A real one asks for more: its kernels have to run at the same time.
    """

    def __init__(self, count: int, compute_ns: int, reduce_ns: int) -> None:
        self._compute_ns, self._reduce_ns = compute_ns, reduce_ns
        self.steps = [0] * count
        self._compute_left = [compute_ns] * count
        self._reduce_left = [reduce_ns] * count

    def ran(self, rank: int, used_ns: int) -> None:
        while used_ns > 0:
            if self._compute_left[rank] > 0:
                part = min(used_ns, self._compute_left[rank])
                self._compute_left[rank] -= part
            elif all(self._has_begun(one, self.steps[rank]) for one in range(len(self.steps))):
                part = min(used_ns, self._reduce_left[rank])
                self._reduce_left[rank] -= part
                if self._reduce_left[rank] == 0:
                    self.steps[rank] += 1
                    self._compute_left[rank] = self._compute_ns
                    self._reduce_left[rank] = self._reduce_ns
            else:
                return  # It spins for the rest of the time.
            used_ns -= part

    def _has_begun(self, rank: int, step: int) -> bool:
        return self.steps[rank] > step or (
            self.steps[rank] == step and self._compute_left[rank] == 0
        )


def machine(
    ranks: Ranks, rank: int, mine: Tenant, others: Sequence[Tenant], clock_ns: int
) -> Machine:
    def ran(name: str, used_ns: int) -> None:
        if name == mine.grant:
            ranks.ran(rank, used_ns)

    return Machine([mine, *others], lambda name, at: True, clock_ns, ran)


def steps_per_second(
    percent: int, own_clock: bool, others: Sequence[Tenant], compute_ns: int, apart_ns: int
) -> tuple[float, list[Machine]]:
    """Speed of two ranks on two nodes whose clocks are `apart_ns` apart."""
    ranks = Ranks(2, compute_ns, MS // 2)
    mine = tenant("rank", percent, own_clock=own_clock)
    nodes = [machine(ranks, rank, mine, others, rank * apart_ns) for rank in range(2)]
    for _ in range(2):  # The first run is for the planners to settle.
        before = ranks.steps[0]
        for _ in range(RUN_NS // (MS // 2)):
            for node in nodes:
                node.step()
    return (ranks.steps[0] - before) * S / RUN_NS, nodes


@pytest.mark.parametrize(
    ("percent", "compute_ms", "gain"), [(30, 1, 3.0), (50, 1, 2.0), (70, 1, 1.3), (50, 20, 0.97)]
)
def test_ranks_advance_faster_by_their_own_clocks_than_in_windows_that_do_not_meet(
    percent: int, compute_ms: int, gain: float
) -> None:
    """Steps in a second with 50 % and 1.5 ms a step: 37 in windows, 296 by their own clocks, 667 alone. Of 20.5 ms: 21.5,
    22 and 49."""
    others = [tenant("other", 100 - percent)]
    apart_ns = 27 * MS  # Half a period.
    compute_ns = compute_ms * MS
    alone, _ = steps_per_second(percent, False, [], compute_ns, apart_ns)
    turns, nodes = steps_per_second(percent, False, others, compute_ns, apart_ns)
    assert {turn.mode for node in nodes for turn in node.turns.values()} == {TurnMode.LEASE}
    clocks, nodes = steps_per_second(percent, True, others, compute_ns, apart_ns)
    assert {turn.mode for node in nodes for turn in node.turns.values()} == {TurnMode.CAP}
    assert clocks >= gain * turns, (alone, turns, clocks)
    assert clocks >= 0.75 * alone * percent / 100, (alone, turns, clocks)


@settings(max_examples=8, deadline=None)
@given(
    mine=st.integers(5, 80),
    weights=st.lists(st.integers(5, 60), min_size=1, max_size=4),
    gangs=st.integers(1, 2),
)
def test_beside_a_gang_each_grant_has_its_share_minus_the_common_loss(
    mine: int, weights: list[int], gangs: int
) -> None:
    members = [tenant(f"rank{i}", mine, own_clock=True) for i in range(gangs)]
    others = [tenant(f"g{i}", weight) for i, weight in enumerate(weights)]
    node = Machine([*members, *others], lambda name, at: True)
    node.run(S)
    before = dict(node.used_ns)
    node.run(RUN_NS)
    used = {name: (now - before[name]) / RUN_NS for name, now in node.used_ns.items()}
    left = sum(used.values())
    assert left >= 0.8
    whole = mine * gangs + sum(weights)
    for one in others:
        share = int(one.share_ppm) / 10_000 / whole
        assert used[one.grant] >= share * left - 0.015, (used, share, left)
    modes = {node.turns[one.grant].mode for one in others}
    assert modes == {TurnMode.LEASE if len(others) > 1 else TurnMode.CAP}
    assert {node.turns[one.grant].mode for one in members} == {TurnMode.CAP}


@given(share=st.integers(1, WHOLE_PPM), rival=st.integers(1, WHOLE_PPM))
def test_a_gangs_own_clock_is_slower_than_its_share_by_the_changes_alone(
    share: int, rival: int
) -> None:
    paid = own_clock_ppm(share, rival, RULES)
    changes = 2 * RULES.switch_ns / RULES.slice_ns
    assert share / (1 + changes) - 1 <= paid <= share
    assert share <= rival or paid == share


def test_a_trusted_groups_grants_have_their_shares_and_no_windows() -> None:
    share = {"a": 200_000, "b": 300_000, "c": 500_000}
    group = [replace(tenant(name, ppm // 10_000), merged=True) for name, ppm in share.items()]
    node = Machine([replace(group[0], own_clock=True), *group[1:]], lambda name, at: True)
    node.run(2 * S)
    assert {turn.mode for turn in node.turns.values()} == {TurnMode.CAP}
    assert {name: turn.plan_ppm for name, turn in node.turns.items()} == share


def test_a_gang_alone_has_all_of_the_gpu() -> None:
    node = Machine([tenant("rank", 30, own_clock=True)], lambda name, at: True)
    node.run(S)
    assert node.turns["rank"].mode is TurnMode.OFF
    assert node.used_ns["rank"] > 0.98 * S
