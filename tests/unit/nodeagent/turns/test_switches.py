"""The cost of a change of contexts, learned from what grants say: only from several, and a liar moves it little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import STEADY_NS, TurnPlanner
from nodeagent.core.turns.switches import EVERY_NS, LEAST_NS, MOST_NS, SwitchCosts
from nodeagent.core.turns.windows import SWITCH_LOSS, PlanRules, Tenant
from nodeagent.ports.regions import DeviceTurn, TurnMode
from nodeagent.units import GpuUuid, GrantId, Nanoseconds, Ppm

MS = 1_000_000
US = 1_000
GPU = GpuUuid("a")
ASSUMED = Nanoseconds(200 * US)
words = st.integers(0, 2**32 - 1)


def said(*values: int) -> dict[GrantId, int]:
    return {GrantId(str(i)): value for i, value in enumerate(values)}


def learned(*values: int) -> int:
    costs = SwitchCosts(ASSUMED)
    costs.learn(GPU, said(*values), 0)
    return costs.cost_ns(GPU)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ((), 200),
        ((0, 0, 0), 200),
        ((400,), 200),
        ((400, 0), 200),
        ((400, 420), 400),
        ((400, 90), 200),
        ((400, 90, 420), 400),
        ((90, 400, 420, 4000), 400),
        ((10, 12), 50),
        ((4000, 5000), 1000),
    ],
    ids=str,
)
def test_one_grant_alone_changes_nothing_and_of_several_the_median_counts(
    values: tuple[int, ...], want: int
) -> None:
    assert learned(*(value * US for value in values)) == want * US


@given(honest=st.integers(60 * US, 900 * US), others=st.integers(2, 6), lie=words)
def test_a_liar_among_honest_grants_moves_nothing(honest: int, others: int, lie: int) -> None:
    assert learned(*[honest] * others, lie) == honest
    assert learned(lie, *[honest] * others) == honest


@given(honest=st.integers(60 * US, 900 * US), lie=words)
def test_a_liar_beside_one_honest_grant_moves_the_value_by_half_at_most(
    honest: int, lie: int
) -> None:
    got = learned(honest, lie)
    assert got == ASSUMED or honest / 1.5 - 1 <= got <= honest


@given(rounds=st.lists(st.lists(words, max_size=8), max_size=20))
def test_whatever_is_said_the_value_stays_in_its_range_and_moves_seldom(
    rounds: list[list[int]],
) -> None:
    costs = SwitchCosts(ASSUMED)
    moved = -EVERY_NS
    before = costs.cost_ns(GPU)
    for i, values in enumerate(rounds):
        now = i * EVERY_NS // 3
        costs.learn(GPU, said(*values), now)
        after = costs.cost_ns(GPU)
        assert LEAST_NS <= after <= MOST_NS
        if after != before:
            assert now - moved >= EVERY_NS
            moved, before = now, after


def test_values_that_scatter_by_some_percent_change_no_plan() -> None:
    costs = SwitchCosts(ASSUMED)
    costs.learn(GPU, said(400 * US, 400 * US), 0)
    for i in range(1, 20):
        off = (-1) ** i * 30 * US
        costs.learn(GPU, said(400 * US + off, 400 * US + off), i * 2 * EVERY_NS)
        assert costs.cost_ns(GPU) == 400 * US


def planned(values: dict[str, int]) -> dict[GrantId, DeviceTurn]:
    """The turns of grants that never rest, after some seconds."""
    rules = PlanRules(
        period_ns=Nanoseconds(10 * MS),
        longest_period_ns=Nanoseconds(100 * MS),
        smallest_quantum_ns=Nanoseconds(2 * MS),
        active_hold_ns=Nanoseconds(50 * MS),
        floor_ppm=Ppm(50_000),
        switch_ns=ASSUMED,
    )
    planner = TurnPlanner(rules)
    tenants = [Tenant(GrantId(name), (GPU,), Ppm(500_000), False) for name in values]
    turns: dict[GrantId, DeviceTurn] = {}
    for tick in range(2 * STEADY_NS // (5 * MS)):
        now = 10**12 + tick * 5 * MS
        looks = {
            (one.grant, GPU): Activity(
                tick * MS, 0, 0, tick * 10, now, True, True, values[one.grant]
            )
            for one in tenants
        }
        for change in planner.plan(tenants, looks, Nanoseconds(now)):
            turns[change.grant] = change.turn
    return turns


@pytest.mark.parametrize("cost", [70 * US, 200 * US, 350 * US])
def test_windows_are_made_for_the_learned_cost(cost: int) -> None:
    turns = planned({"a": cost, "b": cost})
    for turn in turns.values():
        assert turn.mode is TurnMode.LEASE
        assert turn.switch_ns == cost
        assert 2 * cost / turn.lease_period_ns <= SWITCH_LOSS * 1.01


def test_windows_are_made_for_the_assumed_cost_while_one_grant_alone_says_something() -> None:
    assert {turn.switch_ns for turn in planned({"a": 900 * US, "b": 0}).values()} == {ASSUMED}
