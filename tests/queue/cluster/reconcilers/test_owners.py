"""Workloads whose owner is gone or not known here, and those that are done with."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.scheduler.model.objects import WorkloadKey
from tests.queue.cluster.reconcilers.world import World

T = TypeVar("T")
JOBS = next(kind for kind in KINDS if kind.kind == "Job")
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}
ADMITTED = {
    "admission": {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", "count": 1, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "1"}}]},
    "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-11-22T10:00:00Z"}],
}  # fmt: skip
FINISHED = {
    "conditions": [{"type": "Finished", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-11-22T10:00:00Z"}],
}  # fmt: skip


def workload(status: dict[str, Any], owned: bool = False, **head: Any) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "w",
            "namespace": "n",
            "uid": "u-w",
            "resourceVersion": "1",
            "finalizers": ["kueue.x-k8s.io/resource-in-use"],
            **({"ownerReferences": [OWNER]} if owned else {}),
            **head,
        },
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": containers}}}]},
        "status": status,
    }  # fmt: skip


OF_JOB = {"labels": {"kueue.x-k8s.io/job-uid": "u-j"}}


def test_a_workload_whose_job_was_deleted_alone_is_finished() -> None:
    world = World()
    world.reconcile(workload(ADMITTED, **OF_JOB))
    assert world.condition("Finished") == "OwnerNotFound"
    assert world.book.engine.holding(WorkloadKey("n/w")) is None


@pytest.mark.parametrize(
    ("status", "head", "job"),
    [
        pytest.param(ADMITTED, {}, None, id="nobody made it for a job"),
        pytest.param(ADMITTED, OF_JOB, "u-j", id="its job is there"),
    ],
)
def test_others_without_an_owner_go_on(
    status: dict[str, Any], head: dict[str, Any], job: str | None
) -> None:
    world = World()
    if job is not None:
        made = {"name": "j", "namespace": "n", "uid": job, "resourceVersion": "1"}
        world.add(JOBS, {"metadata": made})
    world.reconcile(workload(status, **head))
    assert world.condition("Finished") == ""


@pytest.mark.parametrize("owned", [False, True])
def test_a_finished_workload_loses_its_finalizer(owned: bool) -> None:
    world = World()
    if owned:
        head = {"name": "j", "namespace": "n", "uid": "u-j", "resourceVersion": "1"}
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        world.add(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": {"suspend": False, "template": {"spec": {"containers": []}}}, "status": done})  # fmt: skip
    world.reconcile(workload(FINISHED, owned))
    assert world.server.patches == [{"metadata": {"finalizers": None}}]
    assert world.updated == ["n/w"], "every handler of Workloads is called, as for a watch event"


def test_quota_is_free_once_the_eviction_is_stored() -> None:
    world = World()
    head = {"name": "j", "namespace": "n", "uid": "u-j", "resourceVersion": "1"}
    world.add(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": {"suspend": True, "template": {"spec": {"containers": []}}}})  # fmt: skip
    world.add(WORKLOADS, workload(ADMITTED, owned=True))
    key = WorkloadKey("n/w")
    book = world.book.workloads
    book.evict(key, "AdmissionCheck", "again", None, 2)
    assert book.records[key].workload.admission is not None, "the next one would hide it"
    evicted = [*ADMITTED["conditions"], {**ADMITTED["conditions"][0], "type": "Evicted"}]
    stored = workload({**ADMITTED, "conditions": evicted}, owned=True)
    stored["metadata"]["resourceVersion"] = "2"
    world.cache.take(WORKLOADS, stored)
    book.complete_eviction(key, 3)
    assert book.records[key].workload.admission is None


def test_quota_of_an_evicted_workload_without_an_owner_is_its_creators_to_give_back() -> None:
    world = World()
    evicted = [*ADMITTED["conditions"], {**ADMITTED["conditions"][0], "type": "Evicted"}]
    world.add(WORKLOADS, workload({**ADMITTED, "conditions": evicted}))
    key = WorkloadKey("n/w")
    world.book.workloads.complete_eviction(key, 2)
    assert world.book.workloads.records[key].workload.admission is not None
    freed = workload({"conditions": [{**evicted[0], "status": "False"}, evicted[1]]})
    freed["metadata"]["resourceVersion"] = "2"
    world.add(WORKLOADS, freed)
    assert world.book.workloads.records[key].workload.admission is None
