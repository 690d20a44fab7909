"""Workloads follow the value of their priority class, and jobs wait for a class that is missing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.kinds import POD_CLASSES, PRIORITY_CLASSES, WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache, key_of
from queuecontroller.cluster.reconcilers.priorities import Priorities
from queuecontroller.cluster.reconcilers.units import Unit, group_unit, unit_of
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.frameworks import UpdateWorkload
from queuecontroller.frameworks.patches import merged
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource

JOBS = next(kind for kind in KINDS if kind.kind == "Job")
GROUP = "kueue.x-k8s.io/pod-group-name"


class Actions:
    """Stores what is written, or answers with a conflict."""

    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.written: list[str] = []
        self.conflicts = 0
        self.without_class: set[tuple[Resource, str]] = set()

    async def do(self, action: UpdateWorkload, workload: Document) -> None:
        if self.conflicts:
            self.conflicts -= 1
            raise ApiRefused(409, "Conflict", "it has changed")
        self.written.append(key_of(workload))
        version = str(int(workload["metadata"]["resourceVersion"]) + 1)
        patch = {**action.patch, "metadata": {"resourceVersion": version}}
        self.cache.take(WORKLOADS, merged(workload, patch))

    async def look_again(self, kind: Resource, key: str) -> bool:
        return True

    def take_those_without_class(self) -> set[tuple[Resource, str]]:
        taken, self.without_class = self.without_class, set()
        return taken


class World:
    def __init__(self, *documents: tuple[Resource, dict[str, Any]]) -> None:
        self.cache = ObjectCache()
        for kind, document in documents:
            self.cache.take(kind, document)
        self.actions = Actions(self.cache)
        self.added: list[Unit] = []
        self.leads = True
        self.priorities = Priorities(
            cast(WorkloadActions, self.actions), lambda: self.leads, self.added.append
        )

    def work(self) -> None:
        async def all_of_it() -> None:
            running = asyncio.create_task(self.priorities.work_queue.run())
            while len(self.priorities.work_queue):
                await asyncio.sleep(0)
            running.cancel()

        asyncio.run(all_of_it())

    def priority(self, name: str) -> int | None:
        found = self.cache.get(WORKLOADS, f"n/{name}")
        assert found is not None
        value: int | None = found["spec"].get("priority")
        return value


def of_class(name: str, value: int, version: int = 1) -> dict[str, Any]:
    head = {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"kind": "WorkloadPriorityClass", "metadata": head, "value": value}


def workload(
    name: str, of: str, kind: str = "WorkloadPriorityClass", **more: Any
) -> tuple[Resource, dict[str, Any]]:
    head = {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": "1"}
    reference = {"group": "kueue.x-k8s.io", "kind": kind, "name": of}
    spec = {"priority": 10, "priorityClassRef": reference}
    return WORKLOADS, {"kind": "Workload", "metadata": head, "spec": spec, **more}


FINISHED = {"conditions": [{"type": "Finished", "status": "True"}]}


def test_workloads_get_the_new_value_of_their_class() -> None:
    world = World(
        workload("mine", "low"),
        workload("other", "high"),
        workload("of-pods", "low", "PriorityClass"),
        workload("finished", "low", status=FINISHED),
    )
    changed = of_class("low", 3)
    world.cache.take(PRIORITY_CLASSES, changed)
    world.priorities.class_changed("low", changed)
    world.work()
    assert world.actions.written == ["n/mine"]
    assert [world.priority(one) for one in ("mine", "other")] == [3, 10]
    world.priorities.class_changed("low", changed)
    world.work()
    assert world.actions.written == ["n/mine"], "it has that value"


def test_a_new_leader_looks_at_all_classes() -> None:
    classes = ((PRIORITY_CLASSES, of_class("low", 3)), (PRIORITY_CLASSES, of_class("high", 10)))
    world = World(workload("mine", "low"), workload("other", "high"), *classes)
    world.priorities.add_all()
    world.work()
    assert world.actions.written == ["n/mine"]


def test_a_deleted_class_leaves_its_workloads_as_they_are() -> None:
    world = World(workload("mine", "low"))
    world.priorities.class_changed("low", None)
    world.work()
    assert world.actions.written == []


def test_a_workload_that_has_changed_meanwhile_is_written_again() -> None:
    world = World(workload("mine", "low"), (PRIORITY_CLASSES, of_class("low", 3)))
    world.actions.conflicts = 2
    world.priorities.add_all()
    world.work()
    assert world.priority("mine") == 3


def test_only_the_leader_writes() -> None:
    world = World(workload("mine", "low"), (PRIORITY_CLASSES, of_class("low", 3)))
    world.leads = False
    world.priorities.add_all()
    world.work()
    assert world.actions.written == []


@pytest.mark.parametrize("kind", [PRIORITY_CLASSES, POD_CLASSES])
def test_jobs_and_pods_that_lacked_a_class_are_reconciled_again(kind: Resource) -> None:
    head = {"namespace": "n", "resourceVersion": "1"}
    job = {"kind": "Job", "metadata": {**head, "name": "j", "uid": "u-j"}}
    labels = {GROUP: "g"}
    pod = {"kind": "Pod", "metadata": {**head, "name": "p", "uid": "u-p", "labels": labels}}
    world = World((JOBS, job), (PODS, pod))
    world.actions.without_class = {(JOBS, "n/j"), (PODS, "n/p"), (JOBS, "n/gone")}
    changed = of_class("low", 3)
    if kind == PRIORITY_CLASSES:
        world.priorities.class_changed("low", changed)
    else:
        world.priorities.any_class_changed("low", changed)
    assert set(world.added) == {unit_of(JOBS, "n/j"), group_unit("n/g")}
    world.priorities.any_class_changed("low", changed)
    assert len(world.added) == 2, "they are listed again if they still lack it"
