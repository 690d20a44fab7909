"""A cycle searches no more than it may; who is put off comes to its turn, whatever happens meanwhile."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from tests.queue.scheduler.placement.clusters import GIB, LOWER, NEVER, Cluster

QUEUES = 12


def full(settings: EngineSettings, cohort: bool) -> Cluster:
    """One queue holds every GPU; those who come take them from their own queue's low ones."""
    made = Cluster(
        {f"n{i}": 2 for i in range(QUEUES)},
        {f"q{i:02}": (100, LOWER, NEVER) for i in range(QUEUES)},
        settings=settings,
        cohort="all" if cohort else None,
    )
    for i in range(QUEUES):
        for j in range(2):
            made.submit(f"low-{i}-{j}", f"q{i:02}")
    made.settle()
    assert len(made.running) == 2 * QUEUES
    return made


def preemptors(result: CycleResult) -> set[WorkloadKey]:
    return {one.preemptor.key for one in result.preempted}


def put_off(result: CycleResult) -> set[WorkloadKey]:
    reason = PendingReason.PENDING_EVALUATION
    return {one.info.key for one in result.pending if one.reason is reason}


@pytest.mark.parametrize("cohort", [True, False], ids=["one tree", "a tree each"])
def test_a_cycle_searches_once_and_the_others_follow_in_turn(cohort: bool) -> None:
    made = full(EngineSettings(room_steps_per_cycle=1), cohort)
    high = [made.submit(f"high-{i}", f"q{i:02}", priority=10) for i in range(QUEUES)]
    waiting = set(high)
    for _ in range(QUEUES):
        result = made.cycle()
        served = preemptors(result)
        assert len(served) == 1, "at least one, and no more than it may"
        assert put_off(result) & waiting == waiting - served
        assert result.more or not put_off(result), "they do not wait for an event"
        waiting -= served
        made.stop(result)
    assert not waiting
    made.settle()
    assert set(high) <= set(made.running)


@pytest.mark.parametrize("cohort", [True, False], ids=["one tree", "a tree each"])
def test_nobody_starves_though_everybody_else_asks_anew_all_the_time(cohort: bool) -> None:
    """In the first queues a new workload of higher priority needs room in every cycle."""
    made = full(EngineSettings(room_steps_per_cycle=1), cohort)
    last = made.submit("patient", f"q{QUEUES - 1:02}", priority=1)
    for number in range(3 * QUEUES):
        for i in range(QUEUES - 1):
            made.submit(f"eager-{number}-{i}", f"q{i:02}", priority=10 + number)
        result = made.cycle()
        made.stop(result)
        if last in preemptors(result):
            break
    else:
        raise AssertionError("never looked at")
    assert number <= QUEUES + 1, "one of each queue before it, at most"


def test_with_steps_to_spare_all_are_served_at_once() -> None:
    made = full(EngineSettings(), cohort=True)
    high = {made.submit(f"high-{i}", f"q{i:02}", priority=10) for i in range(QUEUES)}
    assert preemptors(made.cycle()) == high


def test_who_is_put_off_keeps_its_quota_from_those_behind() -> None:
    """The first queue's search takes all steps; the second is put off; the third would borrow what
    is left of the second's quota, and has room."""
    made = Cluster(
        {"n0": 1, "n1": 1},
        {"a": (1, LOWER, NEVER), "b": (2, LOWER, NEVER), "c": (0, LOWER, NEVER)},
        settings=EngineSettings(room_steps_per_cycle=1),
    )
    low = [made.submit("low-a", "a"), made.submit("low-b", "b")]
    made.settle()
    assert set(made.running) == set(low)
    small = GpuCapacity("late-0", 0, "H100", 20 * GIB)
    made.room.stock.report("late", NodeCapacity((small,)))
    first = made.submit("first", "a", priority=10)
    second = made.submit("second", "b", priority=10)
    third = made.submit("third", "c", gib=10, cores=10)
    result = made.cycle()
    assert preemptors(result) == {first}
    assert put_off(result) == {second}
    assert third not in made.running
    made.stop(result)
    result = made.cycle()
    assert preemptors(result) == {second}
    made.stop(result)
    made.settle()
    assert {first, second} <= set(made.running)


def test_a_search_that_nodes_change_under_all_the_time_ends_some_day() -> None:
    nodes = 120
    made = Cluster(
        {f"n{i}": 1 for i in range(nodes)},
        {"a": (1000, LOWER, NEVER)},
        settings=EngineSettings(room_steps_per_cycle=1),
    )
    for i in range(nodes):
        made.submit(f"low-{i}")
    for _ in range(nodes + 1):
        made.stop(made.cycle())
    assert len(made.running) == nodes
    key = made.submit("high", priority=10)
    stops = 0
    for number in range(20):
        for i in range(nodes):  # every node says something new
            gpu = GpuCapacity(f"n{i}-0", 0, "H100", 80 * GIB)
            made.room.stock.report(f"n{i}", NodeCapacity((gpu,), {"news": str(number)}))
        result = made.cycle()
        if key in preemptors(result):
            break
        assert put_off(result) == {key}
        stops += 1
    assert stops == 8, "put off, and then ended in one go"
