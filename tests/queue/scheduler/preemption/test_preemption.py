"""Choice of victims: one table row a rule, without and with fair sharing."""

from __future__ import annotations

import pytest

from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.model.objects import Cohort, Condition, PodSet
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.holders import Holders, rank_of
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.scheduler.scheduler import Scheduler
from tests.queue.builders import (
    SECOND,
    cluster_queue,
    group,
    preempting,
    quota,
    scheduler,
    workload,
)

Running = tuple[str, str, int, int]
"""Name, queue, amount, priority."""


def cohort(policy: dict[str, object], fair: bool = False, **sharing: object) -> Scheduler:
    """Three queues of 4 with one cohort; `own` has the policy."""
    return scheduler(
        cluster_queue("own", group(default=quota(4)), cohort="all", preemption=preempting(**policy)),  # type: ignore[arg-type]
        cluster_queue("b", group(default=quota(4)), cohort="all"),
        cluster_queue("c", group(default=quota(4)), cohort="all"),
        settings=EngineSettings(fair_sharing=fair, **sharing),  # type: ignore[arg-type]
    )  # fmt: skip


def run(made: Scheduler, running: list[Running]) -> None:
    for number, (name, queue, amount, priority) in enumerate(running):
        made.submit(workload(name, queue, amount, priority=priority, created_ns=10 + number))
        result = made.cycle((10 + number) * SECOND)
        assert [one.info.workload.name for one in result.reserved] == [name], "the setup must fit"


def targets(made: Scheduler, amount: int, priority: int) -> dict[str, str]:
    """Victims, with the reasons, of a workload of `own` that was created at 12 ns."""
    made.submit(workload("new", "own", amount, priority=priority, created_ns=12))
    result = made.cycle(99 * SECOND)
    return {one.target.workload.name: str(one.reason) for one in result.preempted}


IN_QUEUE, RECLAIM = "InClusterQueue", "InCohortReclamation"
WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
FULL: list[Running] = [("own0", "own", 4, 0), ("b0", "b", 4, 0), ("c0", "c", 4, 0)]
LENT: list[Running] = [("b0", "b", 4, 0), ("b1", "b", 4, 1), ("c0", "c", 4, 0)]
OWN_LOW: list[Running] = [("own-1", "own", 2, -1), ("b0", "b", 6, 0), ("c0", "c", 4, 0)]
ANY_WITHIN = {"within": "LowerPriority", "reclaim": "Any"}


@pytest.mark.parametrize(
    ("running", "policy", "amount", "priority", "gone"),
    [
        pytest.param(FULL, {}, 4, 9, {}, id="never is never"),
        pytest.param(FULL, {"within": "LowerPriority"}, 4, 1, {"own0": IN_QUEUE}, id="own lower priority"),
        pytest.param(FULL, {"within": "LowerPriority"}, 4, 0, {}, id="own equal priority stays"),
        pytest.param([*FULL[1:], ("own0", "own", 4, 0)], {"within": "LowerOrNewerEqualPriority"}, 4, 0, {}, id="equal and as old stays"),
        pytest.param([*FULL[1:], ("x", "c", 0, 0), ("own0", "own", 4, 0)], {"within": "LowerOrNewerEqualPriority"}, 4, 0, {"own0": IN_QUEUE}, id="equal and newer goes"),
        pytest.param(FULL, {"reclaim": "Any"}, 4, 9, {}, id="nobody borrows, nobody gives back"),
        pytest.param(LENT, {"reclaim": "Any"}, 4, -9, {"b0": RECLAIM}, id="lent quota comes back whatever the priority"),
        pytest.param([("b0", "b", 4, 0), ("b1", "b", 4, 0), ("c0", "c", 4, 0)], {"reclaim": "Any"}, 4, 0, {"b1": RECLAIM}, id="of equals the last admitted goes"),
        pytest.param(LENT, {"reclaim": "LowerPriority"}, 4, 0, {}, id="lent quota stays with equal priority"),
        pytest.param(LENT, {"reclaim": "LowerPriority"}, 4, 1, {"b0": RECLAIM}, id="lent quota comes back from lower priority"),
        pytest.param(LENT, {"reclaim": "Any"}, 5, 9, {}, id="more than the own quota is not reclaimed"),
        pytest.param(LENT, {"reclaim": "Any", "borrow": "LowerPriority"}, 5, 1, {}, id="who would borrow finds too little lent"),
        pytest.param(LENT, {"reclaim": "Any", "borrow": "LowerPriority"}, 8, 2, {}, id="a queue that borrows no more is left alone"),
        pytest.param([("b0", "b", 1, 0), ("b1", "b", 7, 0), ("c0", "c", 4, 0)], {"reclaim": "Any", "borrow": "LowerPriority"}, 6, 1, {"b1": WHILE_BORROWING}, id="lower ones go for a borrower"),
        pytest.param([("b0", "b", 1, 0), ("b1", "b", 7, 3), ("c0", "c", 4, 0)], {"reclaim": "Any", "borrow": "LowerPriority", "threshold": 2}, 6, 9, {}, id="above the threshold stays"),
        pytest.param(OWN_LOW, ANY_WITHIN, 4, 0, {"b0": RECLAIM, "own-1": IN_QUEUE}, id="own go too where the rest would borrow"),
        pytest.param(OWN_LOW, ANY_WITHIN, 2, 0, {"b0": RECLAIM}, id="others go before own"),
        pytest.param([("own-1", "own", 2, -1), ("b-2", "b", 5, -2), ("b0", "b", 1, 0), ("c0", "c", 4, 0)], ANY_WITHIN, 2, 0, {"b-2": RECLAIM}, id="the lowest priority goes first"),
    ],
)  # fmt: skip
def test_without_fair_sharing(
    running: list[Running],
    policy: dict[str, object],
    amount: int,
    priority: int,
    gone: dict[str, str],
) -> None:
    made = cohort(policy)
    run(made, running)
    assert targets(made, amount, priority) == gone


FAIR = "InCohortFairSharing"
TWO_SMALL: list[Running] = [
    ("b0", "b", 3, 0),
    ("b1", "b", 3, 0),
    ("c0", "c", 5, 0),
    ("own0", "own", 1, 0),
]
FINAL = (FairPreemptionStrategy.LESS_THAN_OR_EQUAL_TO_FINAL_SHARE,)
INITIAL = (FairPreemptionStrategy.LESS_THAN_INITIAL_SHARE,)


@pytest.mark.parametrize(
    ("running", "sharing", "amount", "gone"),
    [
        pytest.param(TWO_SMALL, {}, 3, {"b1": RECLAIM}, id="within nominal it is reclaim from the largest share"),
        pytest.param([("b0", "b", 8, 0), ("own0", "own", 4, 0)], {}, 1, {"b0": FAIR}, id="a large one goes when it had more"),
        pytest.param([("b0", "b", 8, 0), ("own0", "own", 4, 0)], {"fair_strategies": FINAL}, 1, {}, id="but not if that leaves it with less"),
        pytest.param([("b0", "b", 6, 0), ("own0", "own", 6, 0)], {"fair_strategies": INITIAL}, 1, {}, id="equal shares are left alone"),
        pytest.param([("b0", "b", 4, 0), ("c0", "c", 4, 0), ("own0", "own", 4, 0)], {}, 1, {}, id="nobody borrows"),
    ],
)  # fmt: skip
def test_with_fair_sharing(
    running: list[Running], sharing: dict[str, object], amount: int, gone: dict[str, str]
) -> None:
    made = cohort({"reclaim": "Any"}, fair=True, **sharing)
    run(made, running)
    assert targets(made, amount, 0) == gone


def test_the_already_evicted_go_first_and_are_not_told_again() -> None:
    made = scheduler(
        cluster_queue("q", group(default=quota(4)), preemption=preempting(within="LowerPriority"))
    )
    evicted = Condition("Evicted", True, "PodsReadyTimeout")
    admission_by = scheduler(cluster_queue("q", group(default=quota(4))))
    for name, conditions in (("a", ()), ("b", (evicted,))):
        admission_by.submit(workload(name, "q", 2))
        (one,) = admission_by.cycle(SECOND).reserved
        made.submit(
            workload(name, "q", 2, admission=one.admission(), conditions=conditions, priority=-1)
        )
    made.submit(workload("new", "q", 2))
    result = made.cycle(SECOND)
    assert result.preempted == []
    assert result.pending[0].preempting == ("ns/b",)


def test_holders_are_found_by_any_resource_they_hold_and_once() -> None:
    numbers, root, holders = FlavorResources(), QuotaNode("root", is_cohort=True), Holders()
    infos = []
    for name, requests, priority in (
        ("both", {"gpu": 1, "mem": 1}, 1),
        ("gpu", {"gpu": 1}, 0),
        ("mem", {"mem": 1}, 2),
    ):
        pods = (PodSet("main", 1, requests),)
        info = WorkloadInfo(workload(name, "q", 0, pod_sets=pods, priority=priority), "q", numbers)
        info.usage = {numbers.number("default", resource): 1 for resource in requests}
        holders.add(root, info)
        infos.append(info)
    gpu, mem = numbers.number("default", "gpu"), numbers.number("default", "mem")

    def names(*frs: object) -> list[str]:
        return [info.workload.name for _, info in holders.of(root, frs)]  # type: ignore[arg-type]

    assert names(gpu) == ["gpu", "both"]
    assert names(gpu, mem) == ["gpu", "both", "mem"]
    holders.remove(root, infos[0])
    assert names(gpu, mem) == ["gpu", "mem"]
    assert sorted(map(rank_of, infos))[0] == rank_of(infos[1])


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(("policy", "gone"), [("Any", {"far0": RECLAIM}), ("LowerPriority", {})])
def test_a_queue_that_borrows_within_its_cohorts_own_quota_is_left_alone(
    fair: bool, policy: str, gone: dict[str, str]
) -> None:
    """`near` uses more than its own, but its cohort does not; `far` does."""
    made = scheduler(
        cluster_queue(
            "own", group(default=quota(4)), cohort="top", preemption=preempting(reclaim=policy)
        ),
        cluster_queue("near", group(default=quota(0)), cohort="side"),
        cluster_queue("far", group(default=quota(0)), cohort="top"),
        cohorts=(Cohort("side", "top", (group(default=quota(4)),)),),
        settings=EngineSettings(fair_sharing=fair),
    )
    run(made, [("far0", "far", 4, 9), ("near0", "near", 4, -9)])
    assert targets(made, 4, 0) == gone


@pytest.mark.parametrize("fair", [False, True])
def test_two_preemptors_of_one_cycle_find_each_their_own_target(fair: bool) -> None:
    mine = preempting(reclaim="Any")
    made = scheduler(
        cluster_queue("a", group(default=quota(2)), cohort="all", preemption=mine),
        cluster_queue("b", group(default=quota(2)), cohort="all", preemption=mine),
        cluster_queue("c", group(default=quota(0)), cohort="all"),
        settings=EngineSettings(fair_sharing=fair),
    )
    run(made, [("hog0", "c", 2, 0), ("hog1", "c", 2, 0)])
    for name in "ab":
        made.submit(workload(f"{name}0", name, 2))
    result = made.cycle(99 * SECOND)
    assert {one.target.workload.name for one in result.preempted} == {"hog0", "hog1"}
    assert {one.preemptor.workload.name for one in result.preempted} == {"a0", "b0"}


@pytest.mark.parametrize(("reclaim", "starts"), [("Any", ["late"]), ("LowerPriority", [])])
def test_who_can_always_reclaim_keeps_nothing_from_others(reclaim: str, starts: list[str]) -> None:
    made = scheduler(
        cluster_queue(
            "own", group(default=quota(4)), cohort="all", preemption=preempting(reclaim=reclaim)
        ),
        cluster_queue("b", group(default=quota(4)), cohort="all"),
    )
    run(made, [("own0", "own", 2, 0), ("b0", "b", 5, 0)])
    made.submit(workload("new", "own", 4, created_ns=1, priority=1))
    made.submit(workload("late", "b", 1, created_ns=2))
    result = made.cycle(99 * SECOND)
    assert not result.preempted
    assert [one.info.workload.name for one in result.reserved] == starts
