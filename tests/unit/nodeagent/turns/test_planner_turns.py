"""Turns of tenants: priorities, floors, and grants that hold several GPUs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nodeagent.core.grants.usage import Activity
from nodeagent.core.turns.planner import STEADY_NS, SetTurn, TurnPlanner
from nodeagent.core.turns.windows import PlanRules, Tenant, aligned_windows, divide_by_priority
from nodeagent.ports.regions import TurnMode
from nodeagent.units import WHOLE_PPM, GpuUuid, GrantId, Nanoseconds, Ppm

MS = 1_000_000
FLOOR = 50_000
RULES = PlanRules(
    period_ns=Nanoseconds(10 * MS),
    longest_period_ns=Nanoseconds(100 * MS),
    smallest_quantum_ns=Nanoseconds(2 * MS),
    active_hold_ns=Nanoseconds(50 * MS),
    floor_ppm=Ppm(FLOOR),
)


def tenant(name: str, percent: int, *gpus: str, hard: bool = False, priority: int = 0) -> Tenant:
    return Tenant(
        GrantId(name),
        tuple(GpuUuid(gpu) for gpu in gpus or ("a",)),
        Ppm(percent * 10_000),
        hard,
        priority=priority,
    )


@pytest.mark.parametrize(
    ("active", "percents"),
    [
        ([tenant("x", 30), tenant("y", 70)], [30, 70]),
        ([tenant("low", 50), tenant("high", 50, priority=1)], [5, 95]),
        ([tenant("low", 50), tenant("high", 40, hard=True, priority=1)], [60, 40]),
        ([tenant("low", 10, hard=True), tenant("high", 50, priority=1)], [5, 95]),
        ([tenant("low", 2, hard=True), tenant("high", 50, priority=1)], [2, 98]),
        (
            [tenant("low", 50), tenant("mid", 50, priority=5), tenant("high", 50, priority=9)],
            [5, 5, 90],
        ),
        (
            [tenant(f"low{i}", 50) for i in range(8)] + [tenant("high", 50, priority=1)],
            [2.5] * 8 + [80],
        ),
    ],
)
def test_the_higher_priority_divides_first_and_the_lower_keeps_its_floor(
    active: list[Tenant], percents: list[float]
) -> None:
    assert divide_by_priority(active, FLOOR) == [int(p * 10_000) for p in percents]


tenants = st.lists(
    st.builds(
        lambda percent, hard, priority: (percent, hard, priority),
        st.integers(1, 100),
        st.booleans(),
        st.integers(-3, 3),
    ),
    min_size=1,
    max_size=10,
)


@given(made=tenants)
def test_nobody_exceeds_a_cap_nothing_is_given_twice_and_nothing_is_left_that_somebody_wants(
    made: list[tuple[int, bool, int]],
) -> None:
    active = [
        tenant(f"g{i}", percent, hard=hard, priority=priority)
        for i, (percent, hard, priority) in enumerate(made)
    ]
    shares = divide_by_priority(active, FLOOR)
    assert sum(shares) <= WHOLE_PPM
    assert all(share <= t.cap_ppm for share, t in zip(shares, active, strict=True))
    if sum(t.cap_ppm for t in active) >= WHOLE_PPM:
        assert sum(shares) == WHOLE_PPM
    top = max(t.priority for t in active)
    lower = [i for i, t in enumerate(active) if t.priority < top]
    for priority in {active[i].priority for i in lower}:
        tier = [i for i in lower if active[i].priority == priority]
        floor = min(FLOOR, WHOLE_PPM // 5 // len(lower))
        wanted = sum(active[i].cap_ppm for i in tier)
        assert sum(shares[i] for i in tier) >= min(floor * len(tier), wanted)
    assert all(shares), "no tenant is left out, and 0 would mean no limit"


names = st.sampled_from("abcd")


@given(
    made=st.lists(
        st.tuples(st.sets(names, min_size=1, max_size=4), st.integers(5, 60)),
        min_size=2,
        max_size=6,
    )
)
def test_a_gang_has_one_window_on_all_its_gpus_and_no_two_windows_of_a_gpu_overlap(
    made: list[tuple[set[str], int]],
) -> None:
    everybody = [tenant(f"g{i}", share, *sorted(on)) for i, (on, share) in enumerate(made)]
    assume(any(len(t.gpus) > 1 for t in everybody))
    active = {gpu: [t for t in everybody if gpu in t.gpus] for t in everybody for gpu in t.gpus}
    period, layout = aligned_windows(active, RULES)
    assert RULES.period_ns <= period <= RULES.longest_period_ns
    for t in everybody:
        assert len({layout[t.grant, gpu] for gpu in t.gpus}) == 1, "together or not at all"
    for here in active.values():
        gpu = next(iter(set.intersection(*(set(t.gpus) for t in here))))
        taken = sorted(layout[t.grant, gpu] for t in here)
        for (start, quantum), (following, _) in itertools.pairwise(taken):
            assert start + quantum <= following
        assert all(start + quantum <= period for start, quantum in taken)


STEADY_ROUNDS = STEADY_NS // (5 * MS) + 3


def busy(
    planner: TurnPlanner, everybody: list[Tenant], rounds: int
) -> dict[tuple[str, int], SetTurn]:
    """All tenants launch all the time, and the planner looks every 5 ms."""
    told: dict[tuple[str, int], SetTurn] = {}
    for i in range(rounds):
        looks = {
            (t.grant, gpu): Activity(consumed_ns=i * MS, launches=i, heartbeat_ns=i * 5 * MS)
            for t in everybody
            for gpu in t.gpus
        }
        for change in planner.plan(everybody, looks, Nanoseconds(i * 5 * MS)):
            told[change.grant, change.device] = change
    return told


def test_a_gang_and_a_local_job_take_turns_on_the_gpu_they_share() -> None:
    gang, local = tenant("gang", 50, "a", "b"), tenant("local", 50, "b")
    told = busy(TurnPlanner(RULES), [gang, local], STEADY_ROUNDS)
    turns = [told["gang", 0].turn, told["gang", 1].turn, told["local", 0].turn]
    assert {turn.mode for turn in turns} == {TurnMode.LEASE}
    assert turns[0].lease_period_ns == turns[1].lease_period_ns == turns[2].lease_period_ns
    phase = [turn.lease_origin_ns % turn.lease_period_ns for turn in turns]
    assert phase[0] == phase[1]
    assert abs(phase[1] - phase[2]) == turns[0].lease_quantum_ns == turns[2].lease_quantum_ns


def test_local_jobs_have_windows_while_one_with_several_gpus_rests_now_and_then() -> None:
    """The resting one tied its GPUs together, and windows were to be aligned although no grant had any."""
    planner = TurnPlanner(RULES)
    wide = tenant("wide", 20, "a", "b")
    locals_ = [tenant(name, 40, name[0]) for name in ("a1", "a2", "b1", "b2")]
    modes = {}
    for i in range(2 * STEADY_ROUNDS):
        looks = {
            (one.grant, gpu): Activity(
                consumed_ns=(i - i // 8 if one is wide else i) * MS, counts_waiting=True
            )
            for one in (wide, *locals_)
            for gpu in one.gpus
        }
        for change in planner.plan([wide, *locals_], looks, Nanoseconds(i * 5 * MS)):
            modes[change.grant] = change.turn.mode
    assert {modes[one.grant] for one in locals_} == {TurnMode.LEASE}
    assert modes[wide.grant] is not TurnMode.LEASE


def test_a_gang_without_company_is_left_alone() -> None:
    told = busy(TurnPlanner(RULES), [tenant("gang", 50, "a", "b")], 5)
    assert {change.turn.mode for change in told.values()} == {TurnMode.OFF}


def test_work_that_stays_outstanding_outside_its_window_changes_no_turn() -> None:
    """Kernels that overrun, and tenants that wait and have not looked yet: event pairs inside windows
    are judged by the windows, so nothing has to be sent."""
    planner = TurnPlanner(RULES)
    both = [tenant("x", 30), tenant("y", 70)]

    def look(step: int) -> list[SetTurn]:
        now_ns = 1000 * MS + step * 5 * MS
        seen = Activity(step * MS, 8 * MS, 0, step, now_ns)
        looks = {(one.grant, GpuUuid("a")): seen for one in both}
        return planner.plan(both, looks, Nanoseconds(now_ns))

    assert {change.turn.mode for change in look(0)} == {TurnMode.CAP}
    windows = [change for step in range(1, STEADY_ROUNDS) for change in look(step)]
    assert {change.turn.mode for change in windows} == {TurnMode.LEASE}
    # The usual launch is measured every second at first; windows are moved for it once at most.
    later = [change for step in range(STEADY_ROUNDS, 4 * STEADY_ROUNDS) for change in look(step)]
    assert len(later) <= len(both)


def test_company_that_comes_voids_what_was_timed_before() -> None:
    planner = TurnPlanner(RULES)
    x, y = tenant("x", 30), tenant("y", 70)

    def look(step: int, *busy: Tenant) -> dict[GrantId, SetTurn]:
        now_ns = Nanoseconds(1000 * MS + step * 5 * MS)
        looks = {(one.grant, GpuUuid("a")): Activity(step * MS, 0, 0, step, now_ns) for one in busy}
        return {change.grant: change for change in planner.plan([x, y], looks, now_ns)}

    look(0, x)
    alone = look(1, x)[x.grant].turn
    together = look(2, x, y)[x.grant].turn
    assert together.contention_epoch > alone.contention_epoch
