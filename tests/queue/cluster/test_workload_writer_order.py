"""Quota that the book has freed is free in the API before another workload has it there: at every moment the stored Workloads add
up to no more than the quota. Whole workloads, pods that have ended, pods that an elastic job gave up, and refused writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.writers.workload_writer import WorkloadWriter
from queuecontroller.frameworks.patches import merged
from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSetAssignment,
    RequeueState,
    WorkloadKey,
)
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from queuecontroller.state.shell import Shell
from queuecontroller.state.workloads.conditions import with_condition
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused

T = TypeVar("T")
OLD, NEW = WorkloadKey("n/old"), WorkloadKey("n/new")
AT = "2026-11-22T10:00:00Z"
GPU = "nvidia.com/gpu"
TURNS = 50
"""Turns of the loop in which all that may be written is written."""


def workload(name: str, pods: int, version: int = 1, admitted: bool = False) -> Document:
    containers = [{"name": "c", "resources": {"requests": {GPU: "1"}}}]
    assignment = {"name": "main", "count": pods, "flavors": {GPU: "any"}, "resourceUsage": {GPU: str(pods)}}  # fmt: skip
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "m", "lastTransitionTime": AT}  # fmt: skip
    given = {"admission": {"clusterQueue": "q", "podSetAssignments": [assignment]}, "conditions": [reserved]}  # fmt: skip
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": str(version), "creationTimestamp": AT},
        "spec": {
            "queueName": "q",
            "podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": containers}}}],
        },
        "status": given if admitted else {},
    }  # fmt: skip


def gpus(document: Document) -> int:
    """GPUs that a stored Workload holds, by Kueue's rule."""
    status = document["status"]
    if any(one["type"] == "Finished" and one["status"] == "True" for one in status.get("conditions") or ()):  # fmt: skip
        return 0
    ended = {one["name"]: one["count"] for one in status.get("reclaimablePods") or ()}
    sets = (status.get("admission") or {}).get("podSetAssignments") or ()
    return sum(one["count"] - ended.get(one["name"], 0) for one in sets)


class World:
    """An admitted Workload of two pods and a pending one; the first one's write is answered when the test says so."""

    def __init__(self) -> None:
        self.book = Book(BookSettings(), False, lambda: "0")
        self.book.restore(Snapshot("", 1, 0), 0)
        self.cache = ObjectCache()
        self.mirror = Mirror(self.book, self.cache)
        self.version = 10
        self.answered: asyncio.Event | None = None
        self.new_answered: asyncio.Event | None = None
        self.refusal: ApiRefused | None = None
        self.sums: list[int] = []
        """GPUs of all stored Workloads after each write."""
        self.writer = WorkloadWriter(
            cast(Shell, self), self.mirror, cast(ApiClient, self), lambda: True,
            lambda before, after: None, lambda key, found: self.mirror.workload(key, found, 1),
        )  # fmt: skip
        for document in (workload("old", 2, admitted=True), workload("new", 1)):
            self.cache.take(WORKLOADS, document)
            self.mirror.workload(f"n/{document['metadata']['name']}", document, 1)

    def now_ns(self) -> int:
        return 1

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return call(self.book, 1)

    def stored(self, key: WorkloadKey) -> Document:
        found = self.cache.get(WORKLOADS, key)
        assert found is not None
        return found

    async def merge_patch(self, kind: object, name: str, patch: Any, *_: object, resource_version: str) -> Any:  # fmt: skip
        if name == "old" and self.answered is not None:
            await self.answered.wait()
            if self.refusal is not None:
                newer = {"metadata": {"resourceVersion": str(self.version)}}
                self.cache.take(WORKLOADS, merged(self.stored(OLD), newer))
                raise self.refusal
        if name == "new" and self.new_answered is not None:
            await self.new_answered.wait()
        self.version += 1
        version = {"metadata": {"resourceVersion": str(self.version)}}
        found = merged(merged(self.stored(WorkloadKey(f"n/{name}")), patch), version)
        others = [one for one in self.cache.all_of(WORKLOADS) if one["metadata"]["name"] != name]
        self.sums.append(sum(map(gpus, [found, *others])))
        return found

    # --- what the book decides ---

    def finish(self) -> None:
        self.book.workloads.finish(OLD, "Succeeded", "done", 1)

    def end_a_pod(self) -> None:
        held = self.book.workloads.records[OLD].workload
        self.book.workloads.change(OLD, replace(held, reclaimable_pods={"main": 1}), 1)

    def scale_down(self) -> None:
        held = self.book.workloads.records[OLD].workload
        assert held.admission is not None
        (one,) = held.admission.pod_sets
        fewer = replace(held.admission, pod_sets=(replace(one, count=1, usage={GPU: 1}),))
        self.book.workloads.change(OLD, replace(held, admission=fewer), 1)

    def admit(self) -> None:
        given = Admission("q", (PodSetAssignment("main", 1, {GPU: "any"}, {GPU: 1}),))
        pending = replace(self.book.workloads.records[NEW].workload, admission=given)
        reserved = with_condition(pending, "QuotaReserved", True, "QuotaReserved", "m", 1)
        self.book.workloads.change(NEW, reserved, 1)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def all_of_it() -> None:
            self.answered = asyncio.Event()
            running = asyncio.create_task(self.writer.work_queue.run())
            await scenario()
            running.cancel()

        asyncio.run(all_of_it())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("free", [World.finish, World.end_a_pod, World.scale_down])
@pytest.mark.parametrize("at_once", [True, False], ids=["one publication", "two publications"])
def test_what_is_freed_is_stored_before_it_is_given(
    free: Callable[[World], None], at_once: bool
) -> None:
    world = World()

    async def scenario() -> None:
        assert world.answered is not None
        free(world)
        if not at_once:
            world.writer.touched([OLD])
        world.admit()
        world.writer.touched([NEW, OLD] if at_once else [NEW])
        await turns()
        assert world.sums == [], "the answer is not there yet"
        world.answered.set()
        await turns()

    world.run(scenario)
    assert gpus(world.stored(NEW)) == 1
    assert world.sums
    assert max(world.sums) <= 2


@pytest.mark.parametrize("free", [World.finish, World.end_a_pod, World.scale_down])
def test_a_write_that_began_before_the_reservation_does_not_let_it_pass(
    free: Callable[[World], None],
) -> None:
    """Its answer ended the wait of the reservation, which came to the queue meanwhile: of four GPUs five were admitted."""
    world = World()

    async def scenario() -> None:
        assert world.answered is not None
        world.new_answered = asyncio.Event()
        pending = world.book.workloads.records[NEW].workload
        again = replace(pending, requeue_state=RequeueState(1, None))
        world.book.workloads.change(NEW, again, 1)
        world.writer.work_queue.add(NEW)
        await turns()
        free(world)
        world.admit()
        world.writer.touched([OLD, NEW])
        world.new_answered.set()
        await turns()
        assert gpus(world.stored(NEW)) == 0, "what is freed for it is not stored yet"
        world.answered.set()
        await turns()

    world.run(scenario)
    assert gpus(world.stored(NEW)) == 1
    assert max(world.sums) <= 2


@pytest.mark.parametrize("free", [World.finish, World.end_a_pod, World.scale_down])
@pytest.mark.parametrize("status", [409, 422])
def test_what_was_not_freed_after_all_is_not_given(
    free: Callable[[World], None], status: int
) -> None:
    """The API server refuses the write that frees it."""
    world = World()
    world.refusal = ApiRefused(status, "Refused", "refused")

    async def scenario() -> None:
        assert world.answered is not None
        free(world)
        world.admit()
        world.writer.touched([OLD, NEW])
        await turns()
        world.answered.set()
        await turns()
        world.writer.touched([OLD, NEW])
        await turns()

    world.run(scenario)
    assert gpus(world.stored(OLD)) == 2
    assert gpus(world.stored(NEW)) == 0
    assert world.book.workloads.records[NEW].workload.admission is None, "it is pending again"


def test_a_workload_that_cannot_be_read_holds_up_nothing() -> None:
    """Its quota stays in the API as it is: the book never had it, so nothing waits until it is free."""
    world = World()
    broken = workload("broken", 1, admitted=True)
    broken["spec"]["podSets"][0]["count"] = "many"
    world.cache.take(WORKLOADS, broken)
    world.mirror.workload("n/broken", broken, 1)
    assert "n/broken" not in world.book.workloads.records

    async def scenario() -> None:
        world.admit()
        world.writer.touched([WorkloadKey("n/broken"), NEW])
        await turns()

    world.run(scenario)
    assert gpus(world.stored(NEW)) == 1


@pytest.mark.parametrize("how", ["deleted", "made again", "stored, and the answer lost"])
def test_quota_that_is_free_without_our_write_holds_up_nothing(how: str) -> None:
    """Workloads that wait for its write would wait for ever: among them itself, once it has quota again."""
    world = World()

    async def scenario() -> None:
        assert world.answered is not None
        world.finish()
        world.admit()
        world.writer.touched([OLD, NEW])
        await turns()
        if how == "stored, and the answer lost":
            world.refusal = ApiRefused(503, "Unavailable", "try again")
            freed = {"metadata": {"resourceVersion": "9"}, "status": {"admission": None}}
            found = merged(world.stored(OLD), freed)
            world.cache.take(WORKLOADS, found)
            world.mirror.workload(OLD, found, 1)
        else:
            world.cache.drop(WORKLOADS, OLD, "old")
            world.mirror.workload(OLD, None, 1)
        if how == "made again":
            again = workload("old", 1, version=9)
            again["metadata"]["uid"] = "again"
            world.cache.take(WORKLOADS, again)
            world.mirror.workload(OLD, again, 1)
        world.writer.touched([OLD])
        await turns()

    world.run(scenario)
    assert gpus(world.stored(NEW)) == 1, "written while the answer for the other one is missing"
