"""Workloads of a Deployment's pods have its UID."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.reconcilers.pods import Pods
from queuecontroller.cluster.reconcilers.units import of_pod
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.frameworks import CreateWorkload, Setting
from queuecontroller.scheduler.model.compatibility import Line, features_of
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, REPLICA_SETS, Resource

UID = "kueue.x-k8s.io/job-uid"
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u-d"}


class Actions:
    """An API server with one ReplicaSet."""

    def __init__(self, cache: ObjectCache, replica_set: Document | None, status: int) -> None:
        self.cache = cache
        self.made: list[dict[str, Any]] = []
        self.read: list[str] = []
        self._replica_set = replica_set
        self._status = status

    def setting(self, document: Document) -> Setting:
        return Setting()

    async def do(self, action: Any, workload: Any, kind: Resource, owner: Document) -> None:
        assert isinstance(action, CreateWorkload)
        self.made.append(action.document)

    async def look(self, kind: Resource, key: str) -> Document | None:
        if kind == WORKLOADS:
            return None
        assert kind == REPLICA_SETS
        self.read.append(key)
        if self._status:
            raise ApiRefused(self._status, "Forbidden", "no")
        return self._replica_set


def pod(name: str, parent: str = "deployment") -> dict[str, Any]:
    gate = {"name": "kueue.x-k8s.io/admission"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u-r"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "n",
            "uid": f"u-{name}",
            "resourceVersion": "1",
            "labels": {
                "kueue.x-k8s.io/queue-name": "q",
                "kueue.x-k8s.io/managed": "true",
            },
            "annotations": {"kueue.x-k8s.io/pod-suspending-parent": parent} if parent else {},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"schedulingGates": [gate], "containers": [{"name": "c"}]},
    }


def replica_set(uid: str = "u-r", controlled: bool = True) -> dict[str, Any]:
    owners = [{**DEPLOYMENT, "controller": True}] if controlled else []
    return {"metadata": {"name": "r", "namespace": "n", "uid": uid, "ownerReferences": owners}}


def made_for(
    found: Document | None, *pods: dict[str, Any], line: Line = Line.V0_20, status: int = 0
) -> tuple[list[str], int]:
    """The label of each Workload, and how often the ReplicaSet was read."""
    cache = ObjectCache(Policy(features=features_of(line)))
    actions = Actions(cache, found, status)
    reconciler = Pods(cast(WorkloadActions, actions), lambda unit: None)
    for one in pods:
        cache.take(PODS, one)
        list(reconciler.changed(f"n/{one['metadata']['name']}", one))
        asyncio.run(reconciler.reconcile(of_pod(one), []))
    return [one["metadata"]["labels"][UID] for one in actions.made], len(actions.read)


def test_the_workloads_of_a_deployments_pods_have_its_uid() -> None:
    labels, reads = made_for(replica_set(), pod("a"), pod("b"))
    assert labels == ["u-d", "u-d"]
    assert reads == 1, "it is remembered"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(None, id="it is gone"),
        pytest.param(replica_set("u-other"), id="another of that name"),
        pytest.param(replica_set(controlled=False), id="a ReplicaSet of its own"),
    ],
)
def test_a_pod_without_a_deployment_has_its_own(found: Document | None) -> None:
    assert made_for(found, pod("a"))[0] == ["u-a"]


def test_pods_that_are_queued_for_themselves_have_their_own() -> None:
    assert made_for(replica_set(), pod("a", "")) == (["u-a"], 0)


def test_the_older_line_has_the_pods_uid() -> None:
    assert made_for(replica_set(), pod("a"), line=Line.V0_19) == (["u-a"], 0)


def test_without_the_right_to_read_it_the_pod_is_queued_all_the_same() -> None:
    assert made_for(None, pod("a"), status=403)[0] == ["u-a"]
    with pytest.raises(ApiRefused):
        made_for(None, pod("a"), status=500)
