"""Pods that name a queue and were created without their gate, while no replica answered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import ObjectCache, key_of
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.reconcilers.missed_pods import MissedPods
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.setup.job_webhooks import mutating
from queuecontroller.cluster.status.events import KubernetesEvent
from sluicecommon.kubernetes.resources import PODS, Resource

QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD = "kueue.x-k8s.io/workload"
JOBS = next(kind for kind in KINDS if kind.kind == "Job")
EVERYTHING = Policy()
BEFORE, INSTALLED, LATER = (f"2026-11-22T{hour}:00:00Z" for hour in ("09", "10", "11"))


class Actions:
    """Records what is done to pods."""

    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.done: list[tuple[str, str]] = []
        self.events: list[KubernetesEvent] = []
        self.configuration: dict[str, Any] | None = mutating(lambda path: {}, "sluice")
        self.configuration["metadata"]["creationTimestamp"] = INSTALLED
        self.workloads: dict[str, Any] = {}

    async def look(self, kind: Resource, key: str) -> Any:
        assert (kind.plural, key) == ("mutatingwebhookconfigurations", "sluice-jobs")
        return self.configuration

    async def find(self, namespace: str, name: str) -> Any:
        return self.workloads.get(f"{namespace}/{name}")

    async def mark(self, document: Any, condition: str, reason: str, message: str) -> None:
        self.done.append((condition, reason))

    async def remove(self, kind: Resource, document: Any) -> None:
        assert kind == PODS
        self.done.append(("deleted", document["metadata"]["name"]))

    def record(self, document: Any, kind: Resource, event: KubernetesEvent) -> None:
        self.events.append(event)


def pod(*, phase: str = "Running", namespace: str = "team", **head: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": namespace,
            "uid": "u-p",
            "resourceVersion": "1",
            "creationTimestamp": LATER,
            "labels": {QUEUE: "lq"},
            **head,
        },
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "none"}]},
        "status": {"phase": phase},
    }


def reconciled(
    document: dict[str, Any], *others: tuple[Resource, dict[str, Any]], policy: Policy = EVERYTHING
) -> Actions:
    cache = ObjectCache(policy)
    for kind, one in others:
        cache.take(kind, one)
    cache.take(PODS, document)
    actions = Actions(cache)
    reconcile(actions, document)
    return actions


def reconcile(actions: Actions, document: dict[str, Any]) -> bool:
    missed = MissedPods(cast(WorkloadActions, actions))
    found = [missed.reconcile(unit) for unit in missed.changed(key_of(document), document)]
    return any(asyncio.run(one) for one in found)


def test_a_running_pod_that_names_a_queue_and_is_not_counted_is_ended_with_an_event() -> None:
    actions = reconciled(pod())
    assert actions.done == [("TerminationTarget", "NotAdmitted"), ("deleted", "p")]
    (event,) = actions.events
    assert event.warning
    assert "queue lq" in event.message
    assert "is not counted" in event.message


def test_so_is_one_that_waits_on_its_node() -> None:
    assert reconciled(pod(phase="Pending")).done


@pytest.mark.parametrize(
    "document",
    [
        pod(creationTimestamp=BEFORE),
        pod(phase="Succeeded"),
        pod(labels={QUEUE: "lq", "kueue.x-k8s.io/managed": "true"}),
        pod(labels={}),
        pod(deletionTimestamp=LATER),
        pod(namespace="kube-system"),
        pod(namespace="sluice"),
    ],
    ids=["older", "over", "gated", "no queue", "leaving", "kube-system", "our own namespace"],
)
def test_these_are_left_alone(document: dict[str, Any]) -> None:
    assert reconciled(document).done == []


def test_pods_of_a_queued_job_are_its_jobs() -> None:
    head = {
        "name": "j",
        "namespace": "team",
        "uid": "u-j",
        "resourceVersion": "1",
        "labels": {QUEUE: "lq"},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": head, "spec": {"template": {}}}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-j", "controller": True}
    assert reconciled(pod(ownerReferences=[owner]), (JOBS, job)).done == []
    assert reconciled(pod(ownerReferences=[owner])).done, "the job that it names is not there"


def test_a_pod_whose_workload_is_there_is_counted() -> None:
    workload = {
        "metadata": {"name": "w", "namespace": "team", "uid": "u-w", "resourceVersion": "1"}
    }
    made = pod(annotations={WORKLOAD: "w"})
    assert reconciled(made, (WORKLOADS, workload)).done == []
    assert reconciled(made).done, "nothing is behind the annotation"
    actions = Actions(ObjectCache())
    actions.cache.take(PODS, made)
    actions.workloads["team/w"] = workload
    assert reconcile(actions, made), "the watch of Workloads is behind: judged again"
    assert actions.done == []


def test_without_the_webhook_no_pod_has_missed_it() -> None:
    actions = Actions(ObjectCache())
    actions.cache.take(PODS, pod())
    actions.configuration = None
    reconcile(actions, pod())
    assert actions.done == []


def test_a_policy_without_pods_ends_none() -> None:
    assert reconciled(pod(), policy=Policy(frameworks=frozenset({"batch/job"}))).done == []
