"""Scheduling cycles: who starts, who waits and why, one rule a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    PodSet,
    QueueingStrategy,
    ResourceFlavor,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.scheduler import Scheduler
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    preempting,
    queue_with,
    quota,
    scheduler,
    started,
    used,
    workload,
)

STRICT = {"queueing_strategy": QueueingStrategy.STRICT_FIFO}
EIGHT = group(default=quota(8))


def key(name: str) -> WorkloadKey:
    return WorkloadKey(f"ns/{name}")


def test_priority_comes_before_age() -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    made.submit(workload("old", "q", 5, created_ns=1))
    made.submit(workload("urgent", "q", 5, created_ns=2, priority=1))
    assert started(made) == ["urgent"]
    assert started(made) == []


@pytest.mark.parametrize(("strategy", "passes"), [({}, True), (STRICT, False)])
def test_a_head_that_does_not_fit(strategy: dict[str, object], passes: bool) -> None:
    made = scheduler(cluster_queue("q", EIGHT, **strategy))
    made.submit(workload("running", "q", 5, created_ns=1))
    assert started(made) == ["running"]
    made.submit(workload("large", "q", 5, created_ns=2))
    made.submit(workload("small", "q", 3, created_ns=3))
    assert started(made) == []
    assert started(made) == (["small"] if passes else [])


def test_freed_quota_brings_back_who_was_set_aside() -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    for name in ("first", "second"):
        made.submit(workload(name, "q", 8))
        made.cycle(SECOND)
    made.cycle(SECOND)
    assert [info.workload.name for info in made.pending["q"].inadmissible()] == ["second"]
    assert made.cycle(SECOND).heads == 0
    made.release(key("first"))
    assert started(made) == ["second"]


def test_one_cycle_takes_one_head_of_each_queue_and_no_more_than_there_is() -> None:
    made = scheduler(
        cluster_queue("a", group(default=quota(4)), cohort="all"),
        cluster_queue("b", group(default=quota(4)), cohort="all"),
    )
    made.submit(workload("borrows", "a", 8, created_ns=1))
    made.submit(workload("own", "b", 4, created_ns=2))
    result = made.cycle(SECOND)
    assert [one.info.workload.name for one in result.reserved] == ["own"]
    (waiting,) = result.pending
    assert waiting.reason is PendingReason.WAITING_FOR_QUOTA
    assert "no longer fits" in waiting.message
    assert not made.pending["a"].is_inadmissible(waiting.info)


def test_a_preemptor_keeps_its_place_until_the_preempted_have_stopped() -> None:
    made = scheduler(cluster_queue("q", EIGHT, preemption=preempting(within="LowerPriority")))
    made.submit(workload("low", "q", 8))
    assert started(made) == ["low"]
    made.submit(workload("high", "q", 5, priority=5))
    result = made.cycle(SECOND)
    assert [
        (one.target.workload.name, one.preemptor.workload.name) for one in result.preempted
    ] == [("low", "high")]
    made.submit(workload("passer", "q", 1, priority=9))
    again = made.cycle(SECOND)
    assert not again.reserved
    assert not again.preempted, "no workload is preempted twice"
    assert again.pending[0].reason is PendingReason.WAITING_FOR_PREEMPTED_WORKLOADS
    made.release(key("low"))
    assert started(made) == ["high"]
    assert started(made) == ["passer"]


def test_nobody_takes_what_a_preemptor_waits_for() -> None:
    made = scheduler(
        cluster_queue(
            "own", group(default=quota(4)), cohort="all", preemption=preempting(reclaim="Any")
        ),
        cluster_queue("other", group(default=quota(4)), cohort="all"),
    )
    for name in ("one", "two"):
        made.submit(workload(name, "other", 3))
        assert started(made) == [name]
    made.submit(workload("owner", "own", 4, created_ns=1))
    made.submit(workload("small", "other", 2, created_ns=2))  # 2 are free now
    result = made.cycle(SECOND)
    assert len(result.preempted) == 1
    assert not result.reserved
    assert used(made, "other") == {"default/gpu": 6}


@pytest.mark.parametrize("recompute", [False, True])
def test_two_preemptors_never_stop_the_same_workload_twice(recompute: bool) -> None:
    settings = EngineSettings(recompute_overlapping_targets=recompute)
    mine = preempting(reclaim="Any")
    made = scheduler(
        cluster_queue("a", group(default=quota(2)), cohort="all", preemption=mine),
        cluster_queue("b", group(default=quota(2)), cohort="all", preemption=mine),
        cluster_queue("c", group(default=quota(0)), cohort="all"),
        settings=settings,
    )
    made.submit(workload("hog", "c", 4))
    assert started(made) == ["hog"]
    made.submit(workload("first", "a", 2, created_ns=1))
    made.submit(workload("second", "b", 2, created_ns=2))
    result = made.cycle(SECOND)
    assert [one.preemptor.workload.name for one in result.preempted] == ["first"]
    assert result.skipped_preemptions == ({} if recompute else {"b": 1})
    assert result.recomputed == ([("b", "deferred_fit")] if recompute else [])
    made.release(key("hog"))
    assert sorted(started(made)) == ["first", "second"]


def test_partial_admission_takes_the_largest_count_that_fits() -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    made.submit(workload("w", "q", 0, pod_sets=(PodSet("main", 6, {"gpu": 2}, min_count=2),)))
    (one,) = made.cycle(SECOND).reserved
    assert one.admission().pod_sets[0].count == 4
    assert used(made, "q") == {"default/gpu": 8}


def test_finished_pods_give_their_quota_back() -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    made.submit(workload("w", "q", 2, count=5, reclaimable_pods={"main": 3}))
    (one,) = made.cycle(SECOND).reserved
    assert one.admission().pod_sets[0].count == 2
    assert used(made, "q") == {"default/gpu": 4}


def test_fair_sharing_serves_the_smaller_share_first() -> None:
    made = scheduler(
        cluster_queue("a", group(default=quota(0)), cohort="all"),
        cluster_queue("b", group(default=quota(0)), cohort="all"),
        cohorts=(Cohort("all", resource_groups=(group(default=quota(9)),)),),
        settings=EngineSettings(fair_sharing=True),
    )
    made.submit(workload("a1", "a", 3))
    assert started(made) == ["a1"]
    made.submit(workload("a2", "a", 6, priority=9))
    made.submit(workload("b1", "b", 6))
    assert started(made) == ["b1"]


def strict_scheduler() -> Scheduler:
    return scheduler(
        cluster_queue(
            "own", group(default=quota(4)), cohort="all", **STRICT,
            preemption=preempting(reclaim="LowerPriority"),
        ),
        cluster_queue("other", group(default=quota(4)), cohort="all"),
    )  # fmt: skip


def test_who_cannot_preempt_keeps_its_nominal_quota_from_others() -> None:
    made = strict_scheduler()
    made.submit(workload("equal", "other", 5))
    assert started(made) == ["equal"]
    made.submit(workload("waits", "own", 4, created_ns=1))
    made.submit(workload("late", "other", 3, created_ns=2))
    for _ in range(3):
        result = made.cycle(SECOND)
        assert not result.reserved
        assert not result.preempted
    assert used(made, "other") == {"default/gpu": 5}


def test_an_admission_never_counts_on_those_who_are_still_stopping() -> None:
    """Gone, the borrower would leave room for both; it is not gone yet, and 3 are free."""
    made = scheduler(
        cluster_queue(
            "own", group(default=quota(4)), cohort="all", preemption=preempting(reclaim="Any")
        ),
        cluster_queue("lends", group(default=quota(4)), cohort="all"),
        cluster_queue("borrows", group(default=quota(4)), cohort="all"),
    )
    made.submit(workload("borrower", "borrows", 9))
    assert started(made) == ["borrower"]
    made.submit(workload("owner", "own", 4, created_ns=1))
    made.submit(workload("within", "lends", 3, created_ns=2))
    made.submit(workload("more", "borrows", 2, created_ns=3))
    result = made.cycle(SECOND)
    assert [one.target.workload.name for one in result.preempted] == ["borrower"]
    assert [one.info.workload.name for one in result.reserved] == ["within"]


def test_who_need_not_go_is_put_back() -> None:
    """The lowest priority is tried first, but the next one frees enough alone."""
    made = scheduler(cluster_queue("q", EIGHT, preemption=preempting(within="LowerPriority")))
    made.submit(workload("tiny", "q", 1, priority=-2))
    made.submit(workload("big", "q", 7, priority=-1))
    assert started(made) == ["big"]
    assert started(made) == ["tiny"]
    made.submit(workload("high", "q", 7))
    result = made.cycle(SECOND)
    assert [one.target.workload.name for one in result.preempted] == ["big"]


def test_freed_quota_is_collected_for_the_requeue_delay() -> None:
    made = scheduler(
        cluster_queue("q", EIGHT), settings=EngineSettings(requeue_delay_ns=10 * SECOND)
    )
    for name in ("first", "second"):
        made.submit(workload(name, "q", 8))
        made.cycle(SECOND)
    made.cycle(11 * SECOND)  # the queue itself was news at 1 s
    made.release(key("first"), 15 * SECOND)
    assert made.next_wake_ns() == 25 * SECOND
    assert started(made, 24 * SECOND) == []
    assert started(made, 25 * SECOND) == ["second"]
    assert made.next_wake_ns() is None


@pytest.mark.parametrize("gates", [False, True])
def test_a_closed_preemption_gate_keeps_a_workload_from_preempting(gates: bool) -> None:
    made = scheduler(
        cluster_queue("q", EIGHT, preemption=preempting(within="LowerPriority")),
        settings=EngineSettings(preemption_gates=gates),
    )
    made.submit(workload("low", "q", 8, priority=-1))
    assert started(made) == ["low"]
    made.submit(workload("gated", "q", 8, preemption_gates=("wait",)))
    result = made.cycle(SECOND)
    assert bool(result.preempted) is not gates
    (waiting,) = result.pending
    assert (waiting.reason is PendingReason.ADMISSION_GATED) is gates


def test_amounts_of_63_bits_are_counted_exactly_and_never_lent_twice() -> None:
    """The quota of a cohort is bounded, so that two such queues lend each other nothing."""
    most = 2**63 - 1
    made = scheduler(
        cluster_queue("a", group(default=quota(most)), cohort="all"),
        cluster_queue("b", group(default=quota(most)), cohort="all"),
    )
    made.submit(workload("first", "a", most))
    made.submit(workload("second", "a", most, created_ns=2))
    made.submit(workload("third", "a", 1, created_ns=3))
    assert started(made) == ["first"]
    assert started(made) == []
    assert used(made, "a") == {"default/gpu": most}
    made.release(key("first"))
    assert used(made, "a") == {}
    assert started(made) == ["second"]
    made.release(key("second"))
    assert started(made) == ["third"]
    assert used(made, "a") == {"default/gpu": 1}


@pytest.mark.parametrize(("size", "starts"), [(8, True), (9, False)])
def test_a_larger_slice_takes_the_place_of_the_running_one(size: int, starts: bool) -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    made.submit(workload("small", "q", 6))
    assert started(made) == ["small"]
    made.submit(workload("large", "q", size, replaces=key("small")))
    result = made.cycle(SECOND)
    assert [one.workload.name for one in result.replaced] == (["small"] if starts else [])
    assert (made.holding(key("small")) is None) is starts
    assert used(made, "q") == {"default/gpu": size if starts else 6}
    if starts:
        made.delete(key("large"))
        assert used(made, "q") == {}


@pytest.mark.parametrize("admits_all", [False, True])
def test_a_queue_without_a_selector(admits_all: bool) -> None:
    made = scheduler(
        queue_with(namespace_selector=None),
        settings=EngineSettings(missing_selector_admits_all=admits_all),
    )
    made.submit(workload("w", "q", 1))
    assert started(made) == (["w"] if admits_all else [])


@pytest.mark.parametrize("preserve", [False, True])
def test_a_flavor_missed_for_an_earlier_entry(preserve: bool) -> None:
    """The first cycle skips `small` for what `large` keeps. A search that goes on where it was looks
    at the second flavor only, as in Kueue; else it does not stay aside while the first is free."""
    made = scheduler(
        cluster_queue("a", group(default=quota(4), spot=quota(0)), cohort="all"),
        cluster_queue(
            "b",
            group(default=quota(4)),
            cohort="all",
            preemption=preempting(borrow="LowerPriority"),
        ),
        cluster_queue("c", group(default=quota(4)), cohort="all"),
        flavors=("default", "spot"),
        settings=EngineSettings(preserve_scan_progress=preserve),
    )
    made.submit(workload("running", "c", 2))
    assert started(made) == ["running"]
    made.submit(workload("small", "a", 5, created_ns=2))
    made.submit(workload("large", "b", 12, created_ns=1, priority=1))
    order = [started(made, now * SECOND) for now in range(2, 6)]
    assert [name for names in order for name in names] == ([] if preserve else ["small"])


def test_a_head_whose_flavors_are_tried_in_turns_blocks_nobody() -> None:
    """`first` gets a flavor for one pod set and none for the other, whichever flavors it goes on
    with; `second` behind it fits."""
    made = scheduler(
        cluster_queue("q", group(default=quota(6), spot=quota(0))), flavors=("default", "spot")
    )
    pod_sets = (PodSet("main", 3, {"gpu": 1}), PodSet("p1", 2, {"gpu": 4}))
    made.submit(replace(workload("first", "q", 1, created_ns=1), pod_sets=pod_sets))
    made.submit(workload("second", "q", 3, created_ns=2))
    order = [started(made, now * SECOND) for now in range(2, 6)]
    assert [name for names in order for name in names] == ["second"]
    assert not made.cycle(7 * SECOND).heads, "it is looked at no more until something happens"


def test_who_preempted_is_the_first_again_although_another_took_what_was_freed() -> None:
    queue = cluster_queue(
        "q", group(default=quota(4)), cohort="all", preemption=preempting("LowerPriority")
    )
    owner = cluster_queue(
        "owner", group(default=quota(4)), cohort="all", preemption=preempting(reclaim="Any")
    )
    made = scheduler(queue, owner)
    made.submit(workload("running", "q", 8, priority=0))
    assert started(made) == ["running"]
    made.submit(workload("preemptor", "q", 4, priority=2, created_ns=2))
    assert [one.target.workload.name for one in made.cycle(SECOND).preempted] == ["running"]
    made.submit(workload("theirs", "owner", 4, created_ns=3))
    stopped = made.release("ns/running", SECOND)
    assert stopped is not None
    made.submit(workload("early", "q", 4, priority=3, created_ns=4))
    made.submit(stopped.workload, SECOND)
    assert sorted(started(made, 2 * SECOND)) == ["preemptor", "theirs"]


def test_a_workload_that_queues_again_unchanged_is_found_again() -> None:
    made = scheduler(cluster_queue("q", EIGHT))
    one = workload("w", "q", 8)
    for _ in range(3):
        made.submit(one)
        made.submit(one)
        assert started(made) == ["w"]
        made.release(key("w"))


def test_a_cycle_of_many_trees_is_cut_between_trees_and_goes_round() -> None:
    queues = [
        cluster_queue(f"{tree}{i}", EIGHT, cohort=tree) for tree in ("a", "b", "c") for i in (0, 1)
    ]
    made = scheduler(*queues, settings=EngineSettings(max_heads_per_cycle=1))
    for queue in queues:
        made.submit(workload(f"w-{queue.name}", queue.name, 1))
    results = [made.cycle(SECOND) for _ in range(3)]
    names = [{one.info.workload.name for one in result.reserved} for result in results]
    assert names == [{"w-a0", "w-a1"}, {"w-b0", "w-b1"}, {"w-c0", "w-c1"}]
    assert results[0].more


def rivals(*more: ClusterQueue) -> Scheduler:
    """`mine` has all of both flavors, half of it lent by `other`. Then `third` takes its part of the first flavor back
    from the same workload that `high` would have stopped; there is another that it could stop on the second."""
    both = group(first=quota(5), second=quota(5))
    mine = preempting(within="LowerPriority", reclaim="LowerPriority", borrow="LowerPriority")
    made = scheduler(
        cluster_queue("mine", both, cohort="all", preemption=mine),
        cluster_queue("other", both, cohort="all", preemption=preempting(reclaim="Any")),
        *more,
        flavors=("first", "second"),
    )
    for name in ("on-first", "on-second"):
        made.submit(workload(name, "mine", 10, created_ns=1))
        assert started(made) == [name]
    made.submit(workload("third", "other", 5, priority=5, created_ns=2))
    made.submit(workload("high", "mine", 10, priority=11, created_ns=3))
    return made


def test_targets_chosen_anew_are_on_the_flavors_of_the_nomination() -> None:
    """Kueue does the same: `high` was nominated on the first flavor; it does not stop a workload on
    the second as well."""
    made = rivals()
    result = made.cycle(SECOND)
    stopped = [(one.target.workload.name, one.preemptor.workload.name) for one in result.preempted]
    assert stopped == [("on-first", "third")]
    assert result.skipped_preemptions == {"mine": 1}
    assert result.recomputed == [("mine", "skipped")]
    (waits,) = [one for one in result.pending if one.info.workload.name == "high"]
    assert "overlapping preemption targets" in waits.message


def test_who_found_nobody_anew_keeps_what_it_needs_from_those_after_it() -> None:
    """Otherwise one of lower priority takes what `high` waits for, cycle after cycle."""
    spare = cluster_queue("spare", group(first=quota(2), second=quota(0)), cohort="all")
    small = cluster_queue("small", group(first=quota(0), second=quota(0)), cohort="all")
    made = rivals(spare, small)
    made.submit(workload("late", "small", 2, created_ns=4))
    result = made.cycle(SECOND)
    assert [one.preemptor.workload.name for one in result.preempted] == ["third"]
    assert [one.info.workload.name for one in result.reserved] == []


def racks(second: str) -> Scheduler:
    """GPUs and CPUs are of different flavors, each in a topology."""
    flavors = (
        ResourceFlavor("gpus", topology_name="racks"),
        ResourceFlavor("cpus", topology_name=second),
    )
    groups = (group(gpus=quota(8)), group(cpus=quota(8, resource="cpu")))
    made = Scheduler()
    made.put_namespace("ns", {})
    for name in {"racks", second}:
        made.cache.put_topology(name, ("rack",))
    for flavor in flavors:
        made.cache.put_flavor(flavor)
    made.cache.put_cluster_queue(cluster_queue("q", *groups))
    made.put_local_queue(LocalQueue("ns", "q", "q"))
    made.settle()
    return made


def together(*requests: str) -> tuple[PodSet, ...]:
    return (PodSet("main", 1, dict.fromkeys(requests, 1), required_topology="rack"),)


def test_a_pod_set_is_in_one_topology() -> None:
    """Pods are put where one topology says: with flavors of two it can never be placed, and says so."""
    made = racks("rows")
    made.submit(workload("both", "q", 0, pod_sets=together("gpu", "cpu")))
    result = made.cycle(SECOND)
    assert result.reserved == []
    (waits,) = result.pending
    assert waits.reason is PendingReason.NO_MATCHING_FLAVOR
    assert "needs one topology, its flavors have cpus of rows, gpus of racks" in waits.message
    made.submit(workload("one", "q", 0, pod_sets=together("gpu")))
    assert started(made) == ["one"]
    made = racks("racks")
    made.submit(workload("both", "q", 0, pod_sets=together("gpu", "cpu")))
    assert started(made) == ["both"]
