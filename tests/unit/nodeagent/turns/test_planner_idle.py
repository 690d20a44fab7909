"""Idle time is lent at once, and windows are only for grants that never rest."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import STEADY_NS, TurnPlanner
from nodeagent.core.turns.windows import SWITCH_LOSS, PlanRules, Tenant, windows
from nodeagent.ports.regions import DeviceTurn, TurnMode
from nodeagent.units import WHOLE_PPM, GpuUuid, GrantId, Nanoseconds, Ppm

MS = 1_000_000
TICK_NS = 2 * MS
GPU = GpuUuid("a")
RULES = PlanRules(
    period_ns=Nanoseconds(10 * MS),
    longest_period_ns=Nanoseconds(100 * MS),
    smallest_quantum_ns=Nanoseconds(2 * MS),
    active_hold_ns=Nanoseconds(50 * MS),
    floor_ppm=Ppm(50_000),
    switch_ns=Nanoseconds(200_000),
)


def tenant(name: str, percent: int, hard: bool = False, priority: int = 0) -> Tenant:
    return Tenant(GrantId(name), (GPU,), Ppm(percent * 10_000), hard, priority=priority)


@dataclass
class Scene:
    """Grants on one GPU, looked at every 2 ms; each look says which of them have work."""

    tenants: list[Tenant]
    now_ns: int = 10**12
    counts: bool = True
    used: dict[GrantId, int] = field(default_factory=dict)
    turns: dict[GrantId, DeviceTurn] = field(default_factory=dict)
    changes: int = 0

    def __post_init__(self) -> None:
        self.planner = TurnPlanner(RULES)
        self.look(set())

    def look(self, working: set[str], waiting: bool = False) -> None:
        """`waiting`: those with work are all at the gate, and nothing of theirs moves."""
        self.now_ns += TICK_NS
        looks = {}
        for one in self.tenants:
            works = one.grant in working
            launched = self.used.get(one.grant, 0) + (works and not waiting)
            self.used[one.grant] = launched
            looks[one.grant, GPU] = Activity(
                launched * MS, 0, 0, launched, self.now_ns, works and waiting, self.counts
            )
        for change in self.planner.plan(self.tenants, looks, Nanoseconds(self.now_ns)):
            self.turns[change.grant] = change.turn
            self.changes += 1

    def looks(self, working: set[str], for_ns: int, waiting: bool = False) -> None:
        for _ in range(for_ns // TICK_NS):
            self.look(working, waiting)


TRAINER, SERVER = tenant("trainer", 70), tenant("server", 30)


@pytest.mark.parametrize("priority", [0, 5])
def test_what_a_resting_grant_leaves_is_given_away_at_the_next_look(priority: int) -> None:
    scene = Scene([TRAINER, tenant("server", 30, priority=priority)])
    scene.looks({"trainer", "server"}, 2 * STEADY_NS)
    assert scene.turns[SERVER.grant].mode is TurnMode.LEASE
    scene.look({"trainer"})
    left = scene.turns[TRAINER.grant]
    assert (left.mode, left.plan_ppm, left.active_grants) == (TurnMode.OFF, 0, 1)


def test_a_grant_that_returns_starts_at_once_and_nobody_is_given_a_window() -> None:
    scene = Scene([TRAINER, SERVER])
    for _ in range(40):
        scene.looks({"trainer"}, 40 * MS)
        assert scene.turns[SERVER.grant].mode is TurnMode.CAP, "it finds no window to wait for"
        scene.looks({"trainer", "server"}, 10 * MS)
        modes = {scene.turns[one.grant].mode for one in (TRAINER, SERVER)}
        assert modes == {TurnMode.CAP}
        assert scene.turns[TRAINER.grant].plan_ppm == 700_000


def test_a_grant_that_only_waits_is_at_work() -> None:
    """In a long window of another nothing of it moves."""
    scene = Scene([TRAINER, SERVER])
    scene.looks({"trainer", "server"}, 2 * STEADY_NS)
    before = scene.changes
    scene.looks({"trainer", "server"}, 2 * STEADY_NS, waiting=True)
    assert scene.changes == before
    assert scene.turns[SERVER.grant].mode is TurnMode.LEASE


def test_an_older_guest_keeps_its_turn_for_the_hold() -> None:
    scene = Scene([TRAINER, SERVER], counts=False)
    scene.looks({"trainer", "server"}, 2 * STEADY_NS)
    scene.looks({"trainer"}, RULES.active_hold_ns - 2 * TICK_NS)
    assert scene.turns[TRAINER.grant].mode is TurnMode.LEASE
    scene.looks({"trainer"}, 4 * TICK_NS)
    assert scene.turns[TRAINER.grant].mode is TurnMode.OFF


def test_beside_a_bursty_grant_the_others_keep_their_windows_among_themselves() -> None:
    scene = Scene([tenant("x", 40), tenant("y", 40), tenant("server", 20)])
    scene.looks({"x", "y"}, 2 * STEADY_NS)
    window = scene.turns[GrantId("x")]
    scene.looks({"x", "y", "server"}, 20 * MS)
    x, y, server = (scene.turns[GrantId(name)] for name in ("x", "y", "server"))
    assert x.mode is y.mode is TurnMode.LEASE
    assert server.mode is TurnMode.CAP
    assert x.lease_quantum_ns + y.lease_quantum_ns == x.lease_period_ns
    assert x.lease_period_ns == window.lease_period_ns, "nothing moves when it comes"
    assert [turn.plan_ppm for turn in (x, y, server)] == [400_000, 400_000, 200_000]


made = st.lists(
    st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 2)), min_size=2, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(made=made, seed=st.integers(0, 2**32))
def test_at_any_moment_the_gpu_is_divided_among_those_at_work(
    made: list[tuple[int, bool, int]], seed: int
) -> None:
    """Grants that come and go: after every look the shares of those at work are all of the GPU, or
    all that their caps allow; each can start now, or has a window; no two windows overlap."""
    chance = random.Random(seed)
    everybody = [tenant(f"g{i}", *one) for i, one in enumerate(made)]
    scene = Scene(everybody)
    for _ in range(12):
        working = {str(one.grant) for one in everybody if chance.random() < 0.6}
        scene.looks(working, chance.choice([2, 10, 100, 1200]) * MS)
        active = [one for one in everybody if one.grant in working]
        turns = [scene.turns[one.grant] for one in active]
        if len(active) == 1:
            assert turns[0].plan_ppm == (active[0].share_ppm if active[0].hard else 0)
        elif active:
            most = min(WHOLE_PPM, sum(one.cap_ppm for one in active))
            assert sum(turn.plan_ppm for turn in turns) == most
        leases = [turn for turn in turns if turn.mode is TurnMode.LEASE]
        assert len(leases) != 1, "one alone has nothing to take turns with"
        assert sum(turn.lease_quantum_ns for turn in leases) == (
            leases[0].lease_period_ns if leases else 0
        )
        for one in everybody:
            if one not in active and one.grant in scene.turns:
                assert scene.turns[one.grant].mode is not TurnMode.LEASE, "it would have to wait"


@settings(max_examples=60, deadline=None)
@given(
    percents=st.lists(st.integers(1, 100), min_size=2, max_size=8),
    seconds=st.integers(3, 10),
)
def test_grants_that_never_rest_change_from_one_regime_to_the_other_once(
    percents: list[int], seconds: int
) -> None:
    everybody = [tenant(f"g{i}", percent) for i, percent in enumerate(percents)]
    scene = Scene(everybody)
    working = {str(one.grant) for one in everybody}
    scene.looks(working, STEADY_NS // 2)
    assert {turn.mode for turn in scene.turns.values()} == {TurnMode.CAP}
    scene.looks(working, 2 * STEADY_NS)
    assert {turn.mode for turn in scene.turns.values()} == {TurnMode.LEASE}
    before = scene.changes
    scene.looks(working, seconds * STEADY_NS)
    assert scene.changes == before


@given(
    percents=st.lists(st.integers(1, 100), min_size=2, max_size=8),
    switch_us=st.sampled_from([0, 20, 100, 200, 250, 500, 5000]),
    launches_ns=st.lists(
        st.sampled_from([0, 100_000, MS, 5 * MS, 30 * MS]), min_size=8, max_size=8
    ),
)
def test_what_changes_of_contexts_cost_is_shared_in_proportion(
    percents: list[int], switch_us: int, launches_ns: list[int]
) -> None:
    """A window less its change of contexts is its owner's part of what is left of the period, where
    no window had to be raised to the smallest; and the period is long enough for the loss, or at
    least half of the longest where no period is."""
    rules = replace(RULES, switch_ns=Nanoseconds(switch_us * 1000))
    count = len(percents)
    period, quanta = windows(percents, rules, launches_ns[:count])
    assert sum(quanta) == period
    assert rules.period_ns <= period <= rules.longest_period_ns
    switch = rules.planned_switch_ns(period, count)
    assert all(quantum > switch for quantum in quanta)
    if rules.shortest_period_ns(count) == rules.longest_period_ns:
        assert 2 * period >= rules.longest_period_ns
    elif period < rules.longest_period_ns:
        assert count * switch <= SWITCH_LOSS * period + count
    left = period - count * switch
    if all(quantum > rules.smallest_quantum_ns for quantum in quanta):
        for quantum, percent in zip(quanta, percents, strict=True):
            assert abs(quantum - switch - left * percent // sum(percents)) <= 2
