"""Explain: exact amounts at each limit, every closed door named, and giving what it names is
enough, by the engine's own decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from queuecontroller.scheduler.explain import Explanation, Shortage, explain
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    Cohort,
    Condition,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    QueueingStrategy,
    RequeueState,
    ResourceFlavor,
    ResourceGroup,
    StopPolicy,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement, Taint
from queuecontroller.scheduler.model.settings import EngineSettings
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
from tests.queue.scheduler.plans import build, plans

NOW = 100 * SECOND


def decide(made: Scheduler) -> dict[WorkloadKey, tuple[str, str]]:
    """Reason and message of those that wait, once nothing more happens at this time."""
    said = {}
    for _ in range(50):
        result = made.cycle(NOW)
        said.update({one.info.key: (str(one.reason), one.message) for one in result.pending})
        for one in result.reserved:
            said.pop(one.info.key, None)
        if not (result.reserved or result.more):
            break
    return said


def figures(made: Scheduler) -> object:
    return {
        (name, node.name, fr): (cell.used, cell.quota, cell.potential)
        for name, state in made.cache.queues.items()
        for node in state.node.path
        for fr, cell in node.cells.items()
        if cell.used or cell.quota
    }


def explained(made: Scheduler, name: str, ahead: int = 0) -> Explanation:
    key = WorkloadKey(f"ns/{name}")
    said = decide(made)
    info = next((line.get(key) for line in made.pending.values() if key in line), None)
    unqueued = made._unqueued.get(key)
    found = info.workload if info is not None else unqueued[0] if unqueued is not None else None
    assert found is not None, "it waits"
    before = figures(made)
    queue = info.cluster_queue if info is not None else ""
    answer = explain(made, found, queue, *said.get(key, ("", "")), NOW, ahead)
    assert figures(made) == before, "it only looks"
    return answer


def submit(made: Scheduler, *workloads: Workload) -> None:
    for number, one in enumerate(workloads):
        made.submit(replace(one, created_ns=number + 1), NOW)
        made.cycle(NOW)


# -- quota ----------------------------------------------------------------------------------------

TWO = ResourceGroup(
    ("cpu", "gpu"),
    (
        FlavorQuotas("small", (quota(8000, resource="cpu"), quota(2))),
        FlavorQuotas("large", (quota(4000, resource="cpu"), quota(8))),
    ),
)


def two_flavors() -> Scheduler:
    return scheduler(cluster_queue("a", TWO), flavors=("small", "large"))


def test_the_nearest_flavor_is_named_with_what_is_missing_and_who_holds_it() -> None:
    made = two_flavors()
    submit(made, workload("big", "a", {"cpu": 1000, "gpu": 7}), workload("next", "a", {"gpu": 3}))
    found = explained(made, "next")
    assert found.ways == (
        "2 more gpu of flavor large became free in ClusterQueue a (it requests 3, 1 available"
        " now; held by ns/big 7)",
        "in ClusterQueue a nominalQuota of gpu of flavor large were 10 instead of 8",
        "it requested no more than 1 gpu in all",
    )
    assert found.waiting_helps
    assert [(one.flavor, one.refusal) for one in found.flavors] == [
        ("small", None),
        ("large", None),
    ]
    shown = found.as_dict()
    assert shown["shortages"] == [
        {
            "flavor": "large",
            "resource": "gpu",
            "asked": "3",
            "available": "1",
            "potential": "8",
            "missing": "2",
            "limits": [
                {
                    "object": "ClusterQueue a",
                    "kind": "nominalQuota",
                    "allowed": "8",
                    "used": "7",
                    "missing": "2",
                }
            ],
        }
    ]
    assert "flavor small lacks 1 gpu (ClusterQueue a: 0 of 2 in use" in shown["flavors"][0]["text"]


def test_what_can_never_be_says_so() -> None:
    made = two_flavors()
    submit(made, workload("huge", "a", {"cpu": 1000, "gpu": 9}))
    found = explained(made, "huge")
    assert not found.waiting_helps
    assert found.ways == (
        "in ClusterQueue a nominalQuota of gpu of flavor large were 9 instead of 8",
        "it requested no more than 8 gpu in all",
    )


def test_each_limit_of_the_tree_says_how_much_it_lacks() -> None:
    made = scheduler(
        cluster_queue("a", group(default=quota(2, borrow=1)), cohort="team"),
        cluster_queue("b", group(default=quota(4)), cohort="team"),
    )
    submit(made, workload("mine", "a", 3), workload("theirs", "b", 2), workload("next", "a", 2))
    found = explained(made, "next")
    (one,) = found.shortages
    assert [(limit.label, limit.used, limit.allowed, limit.missing) for limit in one.limits] == [
        ("ClusterQueue a", 3, 3, 2),
        ("Cohort team", 5, 6, 1),
    ]
    assert one.missing == 2
    assert found.ways[0] == (
        "2 more gpu of flavor default became free in ClusterQueue a, which is at its"
        " borrowingLimit and 1 more gpu of flavor default became free in Cohort team (it requests"
        " 2, 0 available now; held by ns/mine 3, ns/theirs 2)"
    )
    made.delete(WorkloadKey("ns/theirs"), NOW)
    ways = explained(made, "next").ways
    assert (
        "ClusterQueue a might borrow 2 more gpu of flavor default (its borrowingLimit prevents it)"
    ) in ways


def test_pod_sets_count_together() -> None:
    made = scheduler(cluster_queue("a", group(default=quota(4))))
    both = (PodSet("one", 1, {"gpu": 3}), PodSet("two", 2, {"gpu": 2}))
    submit(made, workload("job", "a", 0, pod_sets=both))
    (one,) = explained(made, "job").shortages
    assert (one.asked, one.available, one.missing) == (7, 4, 3)


def test_the_fewest_pods_count_where_fewer_will_do() -> None:
    made = scheduler(cluster_queue("a", group(default=quota(4))))
    submit(
        made,
        workload("other", "a", 3),
        workload("job", "a", 0, pod_sets=(PodSet("main", 8, {"gpu": 1}, min_count=2),)),
    )
    found = explained(made, "job")
    assert found.shortages[0].missing == 1
    assert "that is for the 2 pods it can start with at least" in found.ways[0]


def test_the_end_of_those_with_a_maximum_time_is_known() -> None:
    made = scheduler(cluster_queue("a", group(default=quota(4))))
    for name, amount, seconds in (("short", 1, 10), ("long", 3, 60)):
        submit(made, workload(name, "a", amount, max_execution_s=seconds))
        holding = made.holding(WorkloadKey(f"ns/{name}"))
        assert holding is not None
        admitted = Condition("Admitted", status=True, changed_ns=NOW)
        holding.workload = replace(holding.workload, conditions=(admitted,))
    submit(made, workload("one", "a", 1), workload("two", "a", 2))
    assert explained(made, "one").ways[1] == (
        "10 s went by: then ns/short reached its maximumExecutionTimeSeconds, if not before"
    )
    assert explained(made, "two").ways[1].startswith("60 s went by: then ns/short, ns/long reached")


# -- everything else that closes a door -----------------------------------------------------------


def closed(case: str) -> Scheduler:
    queue = cluster_queue("a", group(default=quota(4)))
    job = workload("job", "a", 1)
    flavors: tuple[str | ResourceFlavor, ...] = ("default",)
    if case == "namespace":
        wanted = (Requirement("team", "In", ("x",)), Requirement("gpu", "Exists"))
        queue = replace(queue, namespace_selector=LabelSelector(wanted))
    elif case == "no selector":
        queue = replace(queue, namespace_selector=None)
    elif case == "held":
        queue = replace(queue, stop_policy=StopPolicy.HOLD)
    elif case == "flavor":
        flavors = ()
    elif case == "uncovered":
        job = workload("job", "a", {"gpu": 1, "cpu": 1})
    elif case == "taint":
        flavors = (ResourceFlavor("default", node_taints=(Taint("lent", "yes"),)),)
    elif case == "inactive":
        job = replace(job, active=False)
    elif case == "nowhere":
        job = replace(job, queue_name="b")
    elif case == "limits":
        job = workload("job", "a", 1, pod_sets=(PodSet("main", 1, {"gpu": 1}, over_limit="c: no"),))
    made = scheduler(queue, flavors=flavors)
    if case == "local held":
        made.put_local_queue(LocalQueue("ns", "a", "a", StopPolicy.HOLD))
    elif case == "cluster queue":
        made.put_local_queue(LocalQueue("ns", "a", "gone"))
    submit(made, job)
    return made


@pytest.mark.parametrize(
    ("case", "way"),
    [
        ("namespace", "namespace ns had team=x and gpu among its labels, as the namespaceSelector of ClusterQueue a requires"),
        ("no selector", "ClusterQueue a had a namespaceSelector: without one it serves no namespace"),
        ("held", "ClusterQueue a were resumed: it is stopped, Hold (sluice-queue resume cq a)"),
        ("local held", "LocalQueue ns/a were resumed: it is stopped, Hold (sluice-queue resume lq ns/a)"),
        ("cluster queue", "there were a ClusterQueue gone"),
        ("flavor", "there were a ResourceFlavor default, which ClusterQueue a names"),
        ("uncovered", "ClusterQueue a covered cpu (or the workload did not request it, or resources.excludeResourcePrefixes left it out)"),
        ("taint", "a flavor of ClusterQueue a took pod set main (untolerated taint lent=yes:NoSchedule in flavor default)"),
        ("inactive", "it were active again (sluice-queue resume workload ns/job)"),
        ("nowhere", "there were a LocalQueue ns/b, or it named an existing one"),
        ("limits", "this were corrected: resources validation failed: c: no"),
    ],
)  # fmt: skip
def test_a_closed_door_is_named_and_time_does_not_open_it(case: str, way: str) -> None:
    found = explained(closed(case), "job")
    assert found.ways == (way,)
    assert not found.waiting_helps


def test_a_circle_of_cohorts_is_named() -> None:
    made = scheduler(
        cluster_queue("a", group(default=quota(4)), cohort="x"),
        cohorts=(Cohort("x", parent="y"), Cohort("y", parent="x")),
    )
    submit(made, workload("job", "a", 1))
    (way,) = explained(made, "job").ways
    assert "its own ancestor" in way


def test_back_off_turn_and_room_are_waited_for() -> None:
    made = scheduler(cluster_queue("a", group(default=quota(4))))
    later = RequeueState(2, NOW + 30 * SECOND)
    submit(made, workload("job", "a", 1, requeue_state=later))
    found = explained(made, "job", ahead=2)
    assert found.ways == ("30 s went by: it backs off after 2 attempts",)
    assert found.waiting_helps
    info = made.pending["a"].get(WorkloadKey("ns/job"))
    assert info is not None
    free = replace(info.workload, requeue_state=RequeueState())
    turn = explain(made, free, "a", "", "", NOW, 2)
    assert turn.ways == (
        "it became the head: there is quota for it, and 2 workloads are before it in a",
    )
    reason = str(PendingReason.WAITING_FOR_PLACEMENT)
    room = explain(made, free, "a", reason, "couldn't place: no node has 8 GPUs", NOW)
    assert room.ways == ("a node had room for it (no node has 8 GPUs); there is quota for it",)
    assert explain(made, free, "a", "", "", NOW).ways == ()


# -- laws -----------------------------------------------------------------------------------------


def raised(spec: ClusterQueue, more: Mapping[tuple[str, str], int]) -> ClusterQueue:
    groups = tuple(
        replace(
            one,
            flavors=tuple(
                replace(
                    given,
                    resources=tuple(
                        replace(q, nominal=q.nominal + more.get((given.flavor, q.resource), 0))
                        for q in given.resources
                    ),
                )
                for given in one.flavors
            ),
        )
        for one in spec.resource_groups
    )
    return replace(spec, resource_groups=groups)


def starts_with(
    made: Scheduler, waiting: Workload, queue: str, by: list[Shortage], less: int
) -> bool:
    """True if the workload starts once its queue has the missing quota less `less`, and no other
    workload may take it."""
    spec = made.cache.queues[queue].spec
    more = {(one.flavor, one.resource): one.missing for one in by}
    more[by[0].flavor, by[0].resource] -= less
    made.cache.put_cluster_queue(raised(spec, more))
    made.settle()
    others = [info.key for line in made.pending.values() for info in line.everyone()]
    for key in others:
        made.delete(key)
    made.submit(waiting, NOW)
    result = made.cycle(NOW)
    for other in result.reserved:
        made.delete(other.info.key)
    made.delete(waiting.key)
    made.cache.put_cluster_queue(spec)
    made.settle()
    return [one.info.key for one in result.reserved] == [waiting.key]


@settings(max_examples=150)
@given(plans(), st.data())
def test_giving_what_is_named_admits_it_and_one_less_does_not(plan, data) -> None:  # type: ignore[no-untyped-def]
    made = build(plan)
    for number, (at, amount, priority, _) in enumerate(plan.arrivals):
        count = data.draw(st.integers(1, 2))
        pods = (PodSet("one", 1, {"gpu": amount}), PodSet("two", count, {"gpu": 1}))
        asks = pods if data.draw(st.booleans()) else pods[:1]
        one = workload(f"w{number}", f"q{at}", 0, pod_sets=asks, priority=priority)
        made.submit(replace(one, created_ns=number + 1), NOW)
        decide(made)
    waiting = [info for line in made.pending.values() for info in line.everyone()]
    answers = [
        (info, explain(made, info.workload, info.cluster_queue, "", "", NOW)) for info in waiting
    ]
    for info, found in answers:
        for one in found.shortages:
            assert one.missing == max(limit.missing for limit in one.limits)
            assert all(limit.missing > 0 for limit in one.limits)
        by = list(found.shortages)
        event(f"{len(by)} shortages of {len(info.pod_sets)} pod sets")
        if by:
            queue = info.cluster_queue
            assert starts_with(made, info.workload, queue, by, 0), "what it names is enough"
            assert not starts_with(made, info.workload, queue, by, 1), "and no less is"


def test_quota_that_is_kept_for_another_of_the_cohort_is_said_to_be() -> None:
    first_comes_first = {
        "queueing_strategy": QueueingStrategy.STRICT_FIFO,
        "preemption": preempting(borrow="LowerPriority"),
    }
    made = scheduler(
        cluster_queue("a", group(default=quota(0)), cohort="c", **first_comes_first),
        cluster_queue("b", group(default=quota(0)), cohort="c"),
        cohorts=(Cohort("c", resource_groups=(group(default=quota(3)),)),),
    )
    submit(made, workload("runs", "a", 2), workload("first", "a", 2))
    made.submit(replace(workload("second", "b", 1), created_ns=9), NOW)
    found = explained(made, "second")
    assert found.waiting_helps
    assert found.ways == (
        "the workloads of cohort c before it had started: there is quota for it, and it is"
        " reserved for them",
    )


def test_a_flavor_that_is_rather_waited_for_is_the_one_that_is_named() -> None:
    """An engine that reads a left-out resource as not provided never names such a flavor."""
    both = ResourceGroup(
        ("cpu", "gpu"),
        (
            FlavorQuotas("bare", (quota(8),)),
            FlavorQuotas("full", (quota(9, resource="cpu"), quota(1))),
        ),
    )
    made = scheduler(
        cluster_queue("a", both),
        flavors=("bare", "full"),
        settings=EngineSettings(omitted_resource_is_unlimited=False),
    )
    submit(made, workload("job", "a", {"cpu": 1, "gpu": 2}))
    found = explained(made, "job")
    assert [one.flavor for one in found.shortages] == ["full"]
    assert found.flavors[0].refusal == "flavor bare does not provide resource cpu"
