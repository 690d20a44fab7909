"""Refusals by the API server are reported on the object that they concern."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.frameworks import CreateWorkload, Refuse, UpdateWorkload
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource
from sluicecommon.reader import Problem

JOB: Document = {"metadata": {"name": "j", "namespace": "n", "generation": 1}}
WORKLOAD: Document = {"metadata": {"name": "w", "namespace": "n", "resourceVersion": "1"}}
LACKS_CLASS = "WorkloadPriorityClassNotFound"
WORDS = "spec.podSets: Too many: 20: must have at most 18 items"


class Server:
    """Refuses everything."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked = 0

    async def create(self, *_: object) -> dict[str, Any]:
        self.asked += 1
        raise ApiRefused(self.status, "Invalid", WORDS)

    async def merge_patch(self, *_: object, **__: object) -> dict[str, Any]:
        return await self.create()


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[str, KubernetesEvent]] = []

    def record(self, about: Document, kind: Resource, told: KubernetesEvent) -> None:
        self.told.append((about["metadata"]["name"], told))


def workload_actions(status: int) -> tuple[WorkloadActions, Listener]:
    listener = Listener()
    made = WorkloadActions(
        cast(Shell, None),
        ObjectCache(Policy()),
        cast(ApiClient, Server(status)),
        cast(EventRecorder, listener),
    )
    return made, listener


@pytest.mark.parametrize(
    "action",
    [
        CreateWorkload({"metadata": {"name": "w", "namespace": "n"}}),
        UpdateWorkload({"spec": {}}, "its job has changed"),
    ],
)
def test_a_workload_that_the_server_will_not_have_is_told_once_and_not_tried_for_ever(
    action: CreateWorkload | UpdateWorkload,
) -> None:
    made, listener = workload_actions(422)
    for _ in range(3):
        asyncio.run(made.do(action, WORKLOAD, PODS, JOB))
    ((name, told),) = listener.told
    assert (name, told.reason, told.warning) == ("j", "ErrWorkloadCompose", True)
    assert WORDS in told.message
    changed: Mapping[str, Any] = {"metadata": {**JOB["metadata"], "generation": 2}}
    asyncio.run(made.do(action, WORKLOAD, PODS, dict(changed)))
    assert len(listener.told) == 2, "it has changed: the same may be wrong still"


def test_jobs_that_lack_a_class_are_listed_until_taken_or_gone() -> None:
    made, listener = workload_actions(422)
    lacks = Refuse((Problem("", 'WorkloadPriorityClass "low" not found'),), LACKS_CLASS)
    for _ in range(2):
        asyncio.run(made.do(lacks, None, PODS, JOB))
    ((name, told),) = listener.told
    assert (name, told.reason, told.warning) == ("j", LACKS_CLASS, True)
    assert told.message == 'WorkloadPriorityClass "low" not found'
    assert made.take_those_without_class() == {(PODS, "n/j")}
    assert made.take_those_without_class() == set()
    asyncio.run(made.do(lacks, None, PODS, JOB))
    made.forget(PODS, "n/j")
    assert made.take_those_without_class() == set()


@pytest.mark.parametrize(("status", "told"), [(403, 1), (409, 0), (429, 0), (500, 0)])
def test_what_may_be_taken_later_is_tried_again(status: int, told: int) -> None:
    made, listener = workload_actions(status)
    action = UpdateWorkload({"spec": {}}, "its job has changed")
    with pytest.raises(ApiRefused):
        asyncio.run(made.do(action, WORKLOAD, PODS, JOB))
    assert len(listener.told) == told


class Storing:
    """Stores a Workload, a version later with each write."""

    def __init__(self) -> None:
        self.version = 1

    async def get(self, *_: object) -> dict[str, Any]:
        head = {**WORKLOAD["metadata"], "uid": "u", "resourceVersion": str(self.version)}
        return {"metadata": head, "spec": {}}

    async def create(self, *_: object) -> dict[str, Any]:
        self.version += 1
        return await self.get()

    async def merge_patch(self, *_: object, **__: object) -> dict[str, Any]:
        return await self.create()


def test_an_answer_is_handled_as_the_watch_would_handle_it() -> None:
    cache, listener = ObjectCache(Policy()), Listener()
    told: list[tuple[Resource, str, str]] = []
    cache.on_update = lambda kind, key, document: told.append(
        (kind, key, str(document["metadata"]["resourceVersion"]))
    )
    server = Storing()
    made = WorkloadActions(
        cast(Shell, None), cache, cast(ApiClient, server), cast(EventRecorder, listener)
    )
    asyncio.run(made.do(CreateWorkload(WORKLOAD), None))
    change = UpdateWorkload({"spec": {}}, "its job has changed")
    asyncio.run(made.do(change, WORKLOAD, PODS, JOB))
    assert told == [(WORKLOADS, "n/w", "2"), (WORKLOADS, "n/w", "3")]
    asyncio.run(made.find("n", "w"))
    assert len(told) == 2, "the cache has that version"
    server.version = 4
    assert asyncio.run(made.look_again(WORKLOADS, "n/w"))
    assert told[2:] == [(WORKLOADS, "n/w", "4")]
    cache.take(PODS, WORKLOAD)
    assert asyncio.run(made.look_again(PODS, "n/w"))
    assert told[3:] == [(PODS, "n/w", "4")], "its watch reports that version no more"
