"""Refusals by the API server are reported on the object that they concern."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.mirror import Mirror
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


class Around:
    cache = ObjectCache(Policy())


def workload_actions(status: int) -> tuple[WorkloadActions, Listener]:
    listener = Listener()
    made = WorkloadActions(
        cast(Shell, None),
        cast(Mirror, Around()),
        cast(ApiClient, Server(status)),
        cast(EventRecorder, listener),
        lambda key, document: None,
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
