"""Running jobs of one pod are restarted on other GPUs, so that one fits that fits nowhere else: as the leader decides it in a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import JOBS
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.server.page.questions import explained
from tests.queue.cluster.podplacement.moving import (
    COOLDOWN_S,
    EVENLY,
    HOST,
    LITTLE,
    LONG_AGO,
    NEVER,
    NOW,
    RESTART,
    WHOLE,
    Lab,
    S,
)


def spread(lab: Lab, **little: Any) -> WorkloadKey:
    """50 GB on the one GPU, 20 GB on the other: the rest of both together is a whole GPU."""
    lab.start("large", "a", EVENLY, annotations=NEVER)
    return lab.start("little", "b", LITTLE, **little)


def test_a_small_job_is_restarted_elsewhere_and_both_run() -> None:
    lab = Lab()
    little = spread(lab)
    whole = lab.submit("whole", WHOLE)
    assert lab.is_moved(little)
    evicted = lab.book.workloads.records[little].workload.condition("Preempted")
    assert evicted is not None
    assert evicted.reason == "Consolidation"
    assert "due to consolidation, since it also fits on other GPUs" in evicted.message
    assert lab.where(whole) == ""
    why = lab.book.workloads.why_not(whole)
    assert why is not None
    assert why.reason == "WaitingForPreemptedWorkloads", "no node is requested for it meanwhile"
    lab.stopped(little)
    assert (lab.where(whole), lab.where(little)) == ("b", "a")
    assert not lab.is_moved(little)


def test_without_moves_it_waits_and_is_told_which_would_make_room() -> None:
    lab = Lab(enabled=False)
    little = spread(lab)
    whole = lab.submit("whole", WHOLE)
    assert not lab.is_moved(little)
    plan = "t/little moved from GPU 0 of b to GPU 0 of a"
    assert lab.told(whole).endswith(f"; it would start if {plan}")
    found = explained(lab.shell, *whole.split("/"))
    assert found["explanation"]["ways"][0] == plan
    lab.start("more", "a", LITTLE)
    assert "it would start if" not in lab.told(whole), "nothing fits there any more"


@pytest.mark.parametrize(
    ("queue", "given", "moved"),
    [
        (NEVER, {}, False),
        ({}, {}, False),
        (NEVER, {"annotations": RESTART}, True),
        (NEVER, {"own": RESTART}, True),
        (NEVER, {"template": RESTART}, True),
        (RESTART, {"annotations": NEVER}, False),
        (RESTART, {"own": NEVER, "annotations": RESTART}, False),
        (RESTART, {"template": NEVER}, False),
        (RESTART, {"annotations": {"sluice.dev/consolidation": "sometimes"}}, False),
        (RESTART, {"kind": "ReplicaSet"}, False),
    ],
    ids=[
        *("the queue says never", "nothing is said", "the job", "the Workload", "the pod"),
        *("the job says never", "the Workload before the job", "the pod says never"),
        *("an unknown word", "a job that makes another pod"),
    ],
)
def test_it_is_moved_with_permission_only(
    queue: dict[str, str], given: dict[str, Any], moved: bool
) -> None:
    lab = Lab(queue=queue)
    little = spread(lab, **given)
    lab.submit("whole", WHOLE)
    assert lab.is_moved(little) is moved


def test_a_permission_that_is_given_later_is_seen() -> None:
    lab = Lab(queue=NEVER)
    little = spread(lab)
    whole = lab.submit("whole", WHOLE)
    document = lab.cache.get(JOBS, "t/little")
    assert document is not None
    head = {**document["metadata"], "annotations": RESTART, "resourceVersion": "2"}
    lab.put(JOBS, {**document, "metadata": head})
    assert "it would start if" in lab.told(whole)
    lab.settle()
    assert lab.is_moved(little)


def test_a_pod_disruption_budget_without_disruptions_is_honoured() -> None:
    lab = Lab()
    little = spread(lab)
    lab.guard(0, app="little")
    whole = lab.submit("whole", WHOLE)
    assert not lab.is_moved(little)
    lab.guard(1, app="little")
    lab.told(whole)
    lab.settle()
    assert lab.is_moved(little)


def test_neither_a_higher_priority_nor_a_protected_class_is_moved() -> None:
    lab = Lab()
    little = spread(lab, priority=10)
    lab.submit("whole", WHOLE)
    assert not lab.is_moved(little)
    lab.submit("urgent", WHOLE, priority=10)
    assert lab.is_moved(little), "for an equal priority it may be"
    lab = Lab(never="kept")
    little = spread(lab, named="kept")
    lab.submit("whole", WHOLE)
    assert not lab.is_moved(little)


def test_it_is_not_moved_for_less_than_it_costs() -> None:
    lab = Lab()
    lab.start("large", "a", EVENLY, annotations=NEVER)
    other = lab.start("other", "b", {"gpumem": 30_000, "gpucores": 20}, since=LONG_AGO)
    lab.submit("more", {"gpumem": 55_000, "gpucores": 20})
    assert not lab.is_moved(other)


def test_a_mover_needs_cpus_on_the_other_node_too() -> None:
    lab = Lab(cpus=1500)
    little = spread(lab)
    lab.submit("whole", WHOLE)
    assert not lab.is_moved(little), "the CPU of node a is taken"


def test_a_mover_stays_on_the_nodes_of_its_selector() -> None:
    lab = Lab()
    little = spread(lab, spec={"nodeSelector": {HOST: "b"}})
    lab.submit("whole", WHOLE)
    assert not lab.is_moved(little)


def test_nothing_is_moved_for_a_job_that_may_not_use_the_node() -> None:
    lab = Lab()
    little = spread(lab)
    lab.submit("whole", WHOLE, spec={"nodeSelector": {HOST: "a"}})
    assert not lab.is_moved(little)


def test_one_workload_of_a_namespace_moves_at_a_time() -> None:
    lab = Lab(nodes="abcd")
    first = spread(lab)
    second = lab.start("second", "c", LITTLE)
    lab.start("other", "d", EVENLY, annotations=NEVER)
    lab.submit("whole", WHOLE)
    lab.submit("whole-2", WHOLE)
    moved = [one for one in (first, second) if lab.is_moved(one)]
    assert len(moved) == 1
    lab.stopped(moved[0])
    lab.settle()
    assert lab.is_moved(second if moved == [first] else first), "the next one follows"


def test_pods_that_terminate_late_are_awaited_and_nothing_else_is_moved() -> None:
    lab = Lab(nodes="abcd")
    little = spread(lab)
    lab.start("fills", "c", EVENLY, annotations=NEVER)
    other = lab.start("other", "d", {"gpumem": 29_000, "gpucores": 20}, team="u")
    whole = lab.submit("whole", WHOLE)
    assert lab.is_moved(little)
    lab.stopping(little)
    assert lab.where(little) in ("a", "c"), "it starts elsewhere at once"
    lab.settle(NOW + S)
    assert lab.where(whole) == ""
    assert not lab.is_moved(other)
    lab.book.nodes_room.pods.drop("u-little-0")
    lab.settle(NOW + S)
    assert lab.where(whole) == "b"
    assert not lab.is_moved(other)


def test_all_pods_of_a_job_are_planned_for_together() -> None:
    lab = Lab(nodes="abc", enabled=False)
    spread(lab)
    pair = lab.submit("pair", WHOLE, count=2)
    assert lab.told(pair).endswith(
        "; it would start if t/little moved from GPU 0 of b to GPU 0 of a"
    )


def test_a_gang_gets_a_rack_and_what_moves_is_placed_by_its_topology_too() -> None:
    lab = Lab(nodes="abcd", racks={"a": "r0", "b": "r0", "c": "r1", "d": "r1"})
    little = lab.start("little", "b", LITTLE)
    for where in "cd":
        lab.start(f"large-{where}", where, EVENLY, annotations=NEVER)
    pair = lab.submit("pair", WHOLE, count=2, required="rack")
    assert lab.is_moved(little)
    lab.stopped(little)
    places = lab.book.nodes_room.pods.reserved.slots(pair)
    assert sorted(one.place.node for one in places) == ["a", "b"]
    assert lab.where(little) in ("c", "d")


def test_a_new_leader_goes_on_with_a_move_and_moves_nothing_else_for_it() -> None:
    lab = Lab(nodes="abcd")
    little = spread(lab)
    lab.start("fills", "c", EVENLY, annotations=NEVER)
    other = lab.start("other", "d", {"gpumem": 29_000, "gpucores": 20}, team="u")
    whole = lab.submit("whole", WHOLE)
    assert lab.is_moved(little)
    lab = lab.new_leader()
    lab.settle()
    assert lab.is_moved(little)
    assert not lab.is_moved(other)
    lab.stopped(little)
    assert lab.where(whole) == "b"
    assert lab.where(little) in ("a", "c", "d")
    lab = lab.new_leader()
    assert lab.where(little), "it has quota again"
    limits = lab.book.nodes_room
    record = lab.book.workloads.records[little]
    assert record.moved_ns, "the cool-down is that of its last preemption"
    lab.settle(NOW + S)
    assert not limits.permits_move(record, None)
    lab.settle(NOW + (COOLDOWN_S + 1) * S)
    assert limits.permits_move(record, None)


def test_a_move_that_is_not_stored_is_undone_and_made_again() -> None:
    lab = Lab()
    little = spread(lab)
    lab.submit("whole", WHOLE)
    assert lab.is_moved(little)
    lab.mirror.take_over_again(little, NOW)  # as the writer does where it was refused
    assert not lab.is_moved(little)
    lab.settle()
    assert lab.is_moved(little), "it does not rest from it"


def test_a_workload_that_was_preempted_long_ago_does_not_hold_up_its_namespace() -> None:
    lab = Lab()
    before = {"type": "Preempted", "status": "False", "reason": "QuotaReserved", "message": "m"}
    little = spread(lab, conditions=[{**before, "lastTransitionTime": LONG_AGO}])
    lab.submit("whole", WHOLE)
    lab.settle(NOW + S)
    assert lab.is_moved(little)
