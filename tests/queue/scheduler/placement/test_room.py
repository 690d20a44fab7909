"""Quota and room together: who is preempted for the sake of room, and that it is never in vain."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.model.objects import (
    PreemptionPolicy,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.placement.choose import NoPlace, place
from queuecontroller.scheduler.placement.stock import Share
from queuecontroller.scheduler.placement.stock_room import GivenPods
from tests.queue.scheduler.placement.clusters import GIB, GPU, LOWER, NEVER, Cluster

ANY = PreemptionPolicy.ANY


def one_queue(nodes: dict[str, int], within: PreemptionPolicy = LOWER) -> Cluster:
    return Cluster(nodes, {"a": (100, within, NEVER)})


# --- rules ------------------------------------------------------------------------------------


def test_whoever_has_quota_but_no_gpu_takes_it_from_a_lower_priority() -> None:
    made = one_queue({"n": 1})
    low = made.submit("low")
    made.settle()
    high = made.submit("high", priority=10)
    made.settle()
    assert list(made.running) == [high]
    assert made.preempted == [(high, low)]
    assert "GPU 0 is in exclusive use" in made.reasons[low]


@pytest.mark.parametrize("within", [NEVER, LOWER])
def test_the_policy_and_the_priority_decide_whether_anybody_goes(within: PreemptionPolicy) -> None:
    made = one_queue({"n": 1}, within)
    first = made.submit("first")
    made.settle()
    made.submit("later", priority=10 if within is NEVER else 0)
    made.settle()
    assert list(made.running) == [first]
    assert made.preempted == []


def test_those_go_who_stand_in_the_way_and_no_others() -> None:
    made = one_queue({"n": 4})
    small = [made.submit(f"s{i}", gib=10, cores=10) for i in range(3)]
    big = [made.submit(f"b{i}", gib=70, cores=90) for i in range(3)]
    made.settle()
    assert len(made.running) == 6, "the small ones share a GPU"
    high = made.submit("high", gib=60, cores=50, priority=10)
    made.settle()
    assert [victim for _, victim in made.preempted] == [big[-1]]
    assert high in made.running
    assert set(small) <= set(made.running)


def test_who_would_go_first_is_spared_where_another_has_to_go_anyway() -> None:
    made = one_queue({"n": 1})
    large = made.submit("large", gib=60, cores=10)
    made.settle()
    newest = made.submit("newest", gib=10, cores=10)
    made.settle()
    high = made.submit("high", gib=60, cores=10, priority=10)
    made.settle()
    assert made.preempted == [(high, large)]
    assert set(made.running) == {newest, high}


@given(
    low=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=6),
    high=st.tuples(st.integers(1, 80), st.integers(1, 99)),
    gpus=st.integers(1, 2),
)
def test_no_victim_could_be_spared(
    low: list[tuple[int, int]], high: tuple[int, int], gpus: int
) -> None:
    made = one_queue({"n": gpus})
    for number, (gib, cores) in enumerate(low):
        made.submit(f"low{number}", gib=gib, cores=cores)
        made.settle()
    key = made.submit("high", gib=high[0], cores=high[1], priority=10)
    result = made.cycle()
    victims = frozenset(one.target.key for one in result.preempted)
    if not victims:
        assert key in made.running, "all are of lower priority: it never has to wait"
        return
    preemptor = result.preempted[0].preemptor.workload
    assert fits_without(made, preemptor, victims)
    for one in victims:
        assert not fits_without(made, preemptor, victims - {one}), "a victim that was not needed"
    made.stop(result)
    made.settle()
    assert key in made.running


def test_nobody_goes_when_it_would_not_help() -> None:
    made = one_queue({"n": 2})
    running = [made.submit("low"), made.submit("top", priority=100)]
    made.settle()
    made.submit("pair", gpus=2, priority=10)
    made.settle()
    assert set(made.running) == set(running)
    assert made.preempted == []
    made.scheduler.delete(running[1], made.now_ns)
    del made.running[running[1]]
    made.settle()
    assert list(made.running) == ["t/pair"], "now it does"


def test_quota_that_is_lent_comes_back_with_its_room() -> None:
    made = Cluster({"n": 4}, {"a": (2, LOWER, ANY), "b": (2, LOWER, ANY)})
    lent = [made.submit(f"x{i}", "b", priority=5) for i in range(4)]
    made.settle()
    assert len(made.running) == 4
    mine = made.submit("mine", "a", priority=0)
    made.settle()
    assert mine in made.running
    assert len(made.preempted) == 1
    assert made.preempted[0][1] in lent


def test_others_are_not_preempted_for_room_while_they_use_their_own_quota() -> None:
    made = Cluster({"n": 2}, {"a": (2, LOWER, ANY), "b": (2, LOWER, ANY)})
    for i in range(2):
        made.submit(f"x{i}", "b")
    made.settle()
    made.submit("mine", "a", priority=100)
    made.settle()
    assert len(made.running) == 2
    assert made.preempted == []


def test_room_is_kept_for_the_preemptor_until_the_preempted_have_gone() -> None:
    made = one_queue({"n": 1})
    made.submit("low")
    made.settle()
    high = made.submit("high", priority=10)
    result = made.cycle()
    assert [one.target.key for one in result.preempted] == ["t/low"]
    late = made.submit("late", gib=1, cores=1, priority=9)
    for _ in range(3):
        assert not made.cycle().reserved, "the one that goes is still there"
    made.stop(result)
    made.settle()
    assert high in made.running
    assert late not in made.running


def test_two_preemptors_do_not_count_on_the_same_room() -> None:
    made = Cluster({"n": 2}, {"a": (10, LOWER, NEVER), "b": (10, LOWER, NEVER)})
    low = [made.submit("low-a", "a"), made.submit("low-b", "b")]
    made.settle()
    assert len(made.running) == 2
    high = [made.submit("high-a", "a", priority=10), made.submit("high-b", "b", priority=10)]
    made.settle()
    assert sorted(made.running) == sorted(high)
    assert sorted(victim for _, victim in made.preempted) == sorted(low)


def test_a_node_that_comes_back_is_news() -> None:
    made = one_queue({})
    one = made.submit("one")
    made.settle()
    assert made.reasons[one] == "couldn't place: no node is connected"
    made.report("n", 1)
    made.settle()
    assert one in made.running


# --- laws -------------------------------------------------------------------------------------

jobs = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([10, 20, 40, 80]),
        st.sampled_from([10, 25, 50, 100]),
        st.sampled_from([1, 1, 1, 2]),
        st.sampled_from([0, 0, 5, 10]),
    ),
    min_size=1,
    max_size=14,
)
policies = st.sampled_from([NEVER, LOWER, ANY])
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fits_without(made: Cluster, workload: Workload, gone: frozenset[WorkloadKey]) -> bool:
    """True if the workload would find a place without the workloads in `gone`; the query changes
    nothing."""
    before = made.picture()
    undo = made.room.stock.without({workload.key, *gone})
    try:
        request = made.room.room_request(
            workload, [GivenPods("main", workload.pod_sets[0].count, {})]
        )
        return not isinstance(place(made.room.stock, request.pods, request.topology), NoPlace)
    finally:
        undo()
        assert made.picture() == before


@slow
@given(
    nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    quotas=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    rules=st.tuples(policies.filter(lambda p: p is not ANY), policies),
    program=jobs,
)
def test_whoever_preempts_is_placed_and_every_victim_was_needed(
    nodes: list[int],
    quotas: tuple[int, int],
    rules: tuple[PreemptionPolicy, PreemptionPolicy],
    program: list[tuple[str, int, int, int, int]],
) -> None:
    within, reclaim = rules
    made = Cluster(
        {f"n{i}": count for i, count in enumerate(nodes)},
        {"a": (quotas[0], within, reclaim), "b": (quotas[1], within, reclaim)},
    )
    for number, (queue, gib, cores, gpus, priority) in enumerate(program):
        made.submit(f"w{number}", queue, gib, cores, gpus, priority)
        for _ in range(60):
            result = made.cycle()
            made_for: dict[WorkloadKey, set[WorkloadKey]] = {}
            for one in result.preempted:
                made_for.setdefault(one.preemptor.key, set()).add(one.target.key)
                mine, theirs = one.preemptor, one.target
                if theirs.cluster_queue == mine.cluster_queue:
                    assert within is not NEVER
                    assert theirs.priority < mine.priority
                else:
                    assert reclaim is ANY or (reclaim is LOWER and theirs.priority < mine.priority)
            for one in {p.preemptor.key: p.preemptor for p in result.preempted}.values():
                victims = frozenset(made_for[one.key])
                alone = len(made_for) == 1
                node = made.scheduler.cache.queues[one.cluster_queue].node
                if alone:
                    assert fits_without(made, one.workload, victims), "preempted in vain"
                for spared in victims if alone else ():
                    rest = victims - {spared}
                    usage = node_usage(made, one.workload)
                    assert not (
                        quota_fits(made, node.name, usage, rest)
                        and fits_without(made, one.workload, rest)
                    ), "a victim that was not needed"
            made.stop(result)
            made.check()
            # Quota that others come first to, because they do not borrow, is another matter.
            sure = {
                one.preemptor.key
                for one in result.preempted
                if within_own(made, one.preemptor.cluster_queue, one.preemptor.workload)
            }
            if not (result.reserved or result.preempted or result.more):
                break
            if len(made_for) == 1 and sure:
                after = made.cycle()
                assert sure <= set(made.running), "who preempts is placed"
                made.stop(after)
                made.check()
        else:
            raise AssertionError("the queue never came to rest")


def node_usage(made: Cluster, workload: Workload) -> int:
    pod_set = workload.pod_sets[0]
    return pod_set.requests[GPU] * pod_set.count


def within_own(made: Cluster, queue: str, workload: Workload) -> bool:
    node = made.scheduler.cache.queues[queue].node
    fr = made.scheduler.cache.numbers.number("gpus", GPU)
    usage = node_usage(made, workload)
    return not node.borrowing_with(fr, usage) and node.fits({fr: usage})


def quota_fits(made: Cluster, queue: str, usage: int, gone: frozenset[WorkloadKey]) -> bool:
    nodes = made.scheduler.cache.queues
    infos = [info for q in nodes.values() for key, info in q.workloads.items() if key in gone]
    fr = made.scheduler.cache.numbers.number("gpus", GPU)
    for info in infos:
        nodes[info.cluster_queue].node.remove_usage(info.usage)
    fits = nodes[queue].node.fits({fr: usage})
    for info in infos:
        nodes[info.cluster_queue].node.add_usage(info.usage)
    return fits


@slow
@given(nodes=st.lists(st.integers(1, 2), min_size=1, max_size=2), program=jobs)
def test_nobody_waits_whom_preempting_would_help(
    nodes: list[int], program: list[tuple[str, int, int, int, int]]
) -> None:
    """The other way round, against every set of lower priorities: with quota for all, who waits at
    rest has no room even without all of them."""
    made = one_queue({f"n{i}": count for i, count in enumerate(nodes)})
    every: dict[WorkloadKey, Workload] = {}
    for number, (_, gib, cores, gpus, priority) in enumerate(program):
        key = made.submit(f"w{number}", "a", gib, cores, gpus, priority)
        info = next(i for i in made.scheduler.pending["a"].everyone() if i.key == key)
        every[key] = info.workload
        made.settle()
    for key, workload in every.items():
        if key in made.running:
            continue
        lower = [k for k, one in made.running.items() if one.priority < workload.priority]
        assert not fits_without(made, workload, frozenset(lower))


@given(
    held=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(1, 30)), max_size=12
    ),
    gone=st.sets(st.integers(0, 12)),
)
def test_a_what_if_returns_its_undo(held: list[tuple[int, int, int]], gone: set[int]) -> None:
    made = one_queue({"n0": 2, "n1": 2})
    stock = made.room.stock
    for number, (at, gib, cores) in enumerate(held):
        share = Share(f"n{at // 2}-{at % 2}", gib * GIB, cores * 10_000)
        stock.hold(number, f"n{at // 2}", [share], owner=number % 5)
    before, counts = made.picture(), (stock.freed, stock.changes)
    undo = stock.without({one % 5 for one in gone}, lambda one: one == 0)
    inner = stock.without({1, 2} - gone)
    inner()
    undo()
    assert made.picture() == before
    assert (stock.freed, stock.changes) == counts
    for number in range(len(held)):
        stock.release(number)
    assert made.picture() == one_queue({"n0": 2, "n1": 2}).picture()


def test_what_was_found_is_kept_without_another_search_and_never_once_something_changed() -> None:
    cluster = Cluster({"n1": 2}, {"a": (4, NEVER, NEVER), "b": (4, NEVER, NEVER)})
    searched: list[WorkloadKey] = []
    search = cluster.room._place

    def counting(key: WorkloadKey, *more: Any) -> Any:
        searched.append(key)
        return search(key, *more)

    with mock.patch.object(cluster.room, "_place", counting):
        alone = cluster.submit("alone", "a")
        cluster.settle()
        assert searched == [alone]
        one, other = cluster.submit("one", "a"), cluster.submit("other", "b")
        cluster.settle()
    # Both had been looked at when the GPU that was left was given to the first of them.
    assert set(cluster.running) == {alone, one}
    assert "couldn't place" in cluster.reasons[other] or "GPU" in cluster.reasons[other]
