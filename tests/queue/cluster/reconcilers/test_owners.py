"""Workloads whose owner is gone or not known here, and those that are done with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache, key_of
from queuecontroller.cluster.reconcilers.owners import Reconcilers
from queuecontroller.cluster.reconcilers.units import unit_of
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.frameworks.patches import merged
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import Resource

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


class Server:
    """Stores what is patched."""

    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.patches: list[Any] = []

    async def merge_patch(
        self, kind: Resource, name: str, patch: Any, namespace: str, *_: object, **__: object
    ) -> dict[str, Any]:
        self.patches.append(patch)
        found: dict[str, Any] = merged(self.cache.get(kind, f"{namespace}/{name}"), patch)
        version = int(found["metadata"]["resourceVersion"]) + 1
        return {**found, "metadata": {**found["metadata"], "resourceVersion": str(version)}}


class Steps:
    def __init__(self, book: Book) -> None:
        self.book = book

    def now_ns(self) -> int:
        return 1

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return call(self.book, 1)


class World:
    def __init__(self) -> None:
        book = Book(BookSettings(), False, lambda: "0")
        book.restore(Snapshot("", 1, 0), 0)
        self.cache = ObjectCache()
        mirror = Mirror(book, self.cache)
        self.mirror, self.book = mirror, book
        self.server = Server(self.cache)
        self.reconcilers = Reconcilers(
            cast(Shell, Steps(book)),
            mirror,
            cast(ApiClient, self.server),
            lambda: True,
            cast(EventRecorder, None),
        )

    def add(self, kind: Resource, document: dict[str, Any]) -> None:
        self.cache.take(kind, document)
        if kind == WORKLOADS:
            self.mirror.workload(key_of(document), document, 1)
            self.reconcilers.workload_changed(key_of(document), document)

    async def _reconcile_all(self) -> None:
        running = asyncio.create_task(self.reconcilers.work_queue.run())
        while self.reconcilers.work_queue.done_total < 1:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()

    def reconcile(self, document: dict[str, Any]) -> None:
        async def one() -> None:
            self.add(WORKLOADS, document)
            self.reconcilers.work_queue.add(unit_of(WORKLOADS, key_of(document)))
            await self._reconcile_all()

        asyncio.run(one())

    def condition(self, kind: str) -> str:
        found = self.book.workloads.records[WorkloadKey("n/w")].workload.condition(kind)
        return found.reason if found is not None and found.status else ""


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
