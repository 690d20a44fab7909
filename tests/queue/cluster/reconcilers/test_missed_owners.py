"""Deployments, StatefulSets and LeaderWorkerSets that were created while no replica answered."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from queuecontroller.cluster.cache.job_context import SETS
from queuecontroller.cluster.cache.objects import ObjectCache, key_of
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.reconcilers.missed_owners import MOST_PATCHES, MissedOwners
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.setup.job_webhooks import mutating, patch_of
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.frameworks.patches import merged
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import (
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)

QUEUE = "kueue.x-k8s.io/queue-name"
PARENT = "kueue.x-k8s.io/pod-suspending-parent"
BEFORE, INSTALLED, LATER = (f"2026-11-22T{hour}:00:00Z" for hour in ("09", "10", "11"))
EVERYTHING = Policy()
KINDS = (DEPLOYMENTS, STATEFUL_SETS, SETS)
SET_NAME = "leaderworkerset.sigs.k8s.io/name"


class Server:
    """The API server: it stores patches, lists pods and deletes. Implements WorkloadActions."""

    def __init__(self, policy: Policy = EVERYTHING) -> None:
        self.cache = ObjectCache(policy)
        self.configuration: dict[str, Any] | None = mutating(lambda path: {}, "sluice")
        self.configuration["metadata"]["creationTimestamp"] = INSTALLED
        self.patches: list[dict[str, Any]] = []
        self.refusal: ApiRefused | None = None
        self.replica_sets: dict[str, Any] = {}
        self.pods: list[dict[str, Any]] = []
        self.lists = 0
        self.deleted: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []
        """Reason, and the name of what it is about."""

    async def look(self, kind: Resource, key: str) -> Any:
        return self.replica_sets.get(key) if kind == REPLICA_SETS else self.configuration

    async def patch(self, kind: Resource, document: Any, patch: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.patches.append(patch)
        head = document["metadata"]
        found: dict[str, Any] = merged(document, patch)
        found["metadata"] = {
            **found["metadata"],
            "resourceVersion": str(int(head["resourceVersion"]) + 1),
            "generation": head["generation"] + 1,
        }
        self.cache.take(kind, found)
        return found

    async def list_some(self, kind: Resource, namespace: str, selector: str, limit: int) -> Any:
        self.lists += 1
        wanted = dict(one.split("=") for one in selector.split(","))
        found = [one for one in self.pods if wanted.items() <= one["metadata"]["labels"].items()]
        return {"metadata": {}, "items": found[:limit]}

    async def mark(self, document: Any, condition: str, reason: str, message: str) -> None:
        assert (condition, reason) == ("TerminationTarget", "NotAdmitted")

    async def remove(self, kind: Resource, document: Any, propagation: str = "") -> None:
        if kind == REPLICA_SETS:
            assert propagation == "Background", "its pods go with it"
        self.deleted.append((kind.kind, document["metadata"]["name"]))

    def record(self, document: Any, kind: Resource, event: KubernetesEvent) -> None:
        assert event.warning
        self.events.append((event.reason, document["metadata"]["name"]))

    def refuse(self, kind: Resource, document: Any, why: str, reason: str) -> None:
        self.events.append((reason, document["metadata"]["name"]))

    def forget(self, kind: Resource, key: str) -> None:
        """Nothing is noted."""


class Cluster:
    def __init__(
        self, kind: Resource = DEPLOYMENTS, policy: Policy = EVERYTHING, **head: Any
    ) -> None:
        self.server = Server(policy)
        self.kind = kind
        self.missed = MissedOwners(cast(WorkloadActions, self.server))
        self.write(owner(kind, **head))

    @property
    def owner(self) -> dict[str, Any]:
        return cast(dict[str, Any], next(self.server.cache.all_of(self.kind)))

    def write(self, document: dict[str, Any]) -> None:
        version = str(int(document["metadata"]["resourceVersion"]) + 1)
        head = {**document["metadata"], "resourceVersion": version}
        self.server.cache.take(self.kind, {**document, "metadata": head})

    def set_status(self, **status: Any) -> None:
        self.write({**self.owner, "status": status})

    def reconcile(self) -> Server:
        found = self.missed.changed(self.kind, key_of(self.owner), self.owner)
        for unit in list(found):
            asyncio.run(self.missed.reconcile(unit))
        return self.server

    def roll_out(self, replicas: int) -> Server:
        """Its controller has seen its template, and has made a pod of it."""
        status = {"replicas": replicas + 1, "updatedReplicas": 1}
        self.set_status(observedGeneration=self.owner["metadata"]["generation"], **status)
        return self.reconcile()


def owner(kind: Resource, **head: Any) -> dict[str, Any]:
    template: dict[str, Any] = {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": []}}
    spec: dict[str, Any] = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}}
    if kind == SETS:
        spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}
    else:
        spec["template"] = template
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": "d",
            "namespace": "team",
            "uid": "u-d",
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": LATER,
            "labels": {QUEUE: "lq"},
            **head,
        },
        "spec": spec,
    }


def replica_set(name: str, of: str = "u-d", **labels: str) -> dict[str, Any]:
    maker = {"apiVersion": "apps/v1", "kind": "Deployment", "uid": of, "controller": True}
    head = {"name": name, "namespace": "team", "uid": f"u-{name}", "ownerReferences": [maker]}
    return {"metadata": head, "spec": {"template": {"metadata": {"labels": labels}}}}


def pod(
    name: str, kind: str, maker: str, labels: dict[str, str] | None = None, **head: Any
) -> dict[str, Any]:
    made_by = {"kind": kind, "name": maker, "uid": f"u-{maker}", "controller": True}
    labels = {"app": "d", SET_NAME: "d", **(labels or {})}
    metadata = {"name": name, "namespace": "team", "ownerReferences": [made_by], **head}
    return {"metadata": {**metadata, "labels": labels}}


def ready(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def with_pods(cluster: Cluster, *ready_pods: str) -> Cluster:
    """Two pods of the former template, and one of the present one."""
    server = cluster.server
    if cluster.kind == DEPLOYMENTS:
        server.replica_sets = {"team/old": replica_set("old"), "team/new": replica_set("new", **{QUEUE: "lq"})}  # fmt: skip
        made = [pod(name, "ReplicaSet", "old") for name in ("a", "b")]
        made.append(pod("c", "ReplicaSet", "new", {QUEUE: "lq"}))
    else:
        made = [pod(name, "StatefulSet", "d") for name in ("a", "b")]
        made.append(pod("c", "StatefulSet", "d", annotations={PARENT: "x"}))
    server.pods = [ready(one) if one["metadata"]["name"] in ready_pods else one for one in made]
    return cluster


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
def test_a_template_gets_what_the_webhook_would_have_added_and_nothing_else(kind: Resource) -> None:
    cluster = Cluster(kind)
    before = cluster.owner
    wanted = patch_of(ObjectCache(), before, before, "team")
    server = cluster.reconcile()
    assert server.patches == [wanted]
    assert wanted, "the webhook adds something"
    assert server.events == [("TemplateChanged", "d")]
    after = cluster.owner
    assert patch_of(ObjectCache(), after, after, "team") == {}, "a later write changes nothing"
    cluster.reconcile()
    assert len(server.patches) == 1


def test_the_replica_set_of_the_former_template_goes_with_its_pods() -> None:
    cluster = with_pods(Cluster())
    cluster.reconcile()
    server = cluster.roll_out(2)
    assert server.deleted == [("ReplicaSet", "old")]
    assert server.events[1:] == [("Stopped", "a"), ("Stopped", "b"), ("Stopped", "d")]


@pytest.mark.parametrize("kind", [STATEFUL_SETS, SETS], ids=lambda one: one.kind)
def test_pods_of_the_former_template_are_ended(kind: Resource) -> None:
    cluster = with_pods(Cluster(kind))
    cluster.reconcile()
    server = cluster.roll_out(2)
    assert server.deleted == [("Pod", "a"), ("Pod", "b")]
    assert server.events[1:] == [("Stopped", "a"), ("Stopped", "b"), ("Stopped", "d")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
def test_so_are_those_that_are_ready_since_nobody_counts_them(kind: Resource) -> None:
    cluster = with_pods(Cluster(kind), "a", "b")
    cluster.reconcile()
    assert cluster.roll_out(2).deleted


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
def test_pods_that_a_controller_makes_of_the_former_template_again_are_not_ended_for_ever(
    kind: Resource,
) -> None:
    cluster = with_pods(Cluster(kind))
    cluster.reconcile()
    ended = len(cluster.roll_out(2).deleted)
    cluster.set_status(observedGeneration=2, replicas=4, updatedReplicas=1)
    server = cluster.reconcile()
    assert (len(server.deleted), server.lists) == (ended, 1)


@pytest.mark.parametrize(
    "status",
    [
        {"observedGeneration": 1, "replicas": 2},
        {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2},
    ],
    ids=["its controller has not seen the template", "there are no others"],
)
def test_no_pod_is_looked_for(status: dict[str, int]) -> None:
    cluster = with_pods(Cluster())
    cluster.reconcile()
    cluster.set_status(**status)
    assert cluster.reconcile().lists == 0


def test_a_paused_deployment_makes_no_others_so_it_keeps_its_pods() -> None:
    cluster = with_pods(Cluster())
    cluster.reconcile()
    cluster.write({**cluster.owner, "spec": {**cluster.owner["spec"], "paused": True}})
    assert cluster.roll_out(2).deleted == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
def test_a_leader_that_finds_a_complete_template_ends_what_cannot_start_and_no_other(
    kind: Resource,
) -> None:
    """The leader before it ended between the two steps. Or the owner was put into its queue: then its rollout replaces what serves."""

    def ended(*ready_pods: str) -> list[tuple[str, str]]:
        cluster = with_pods(Cluster(kind), *ready_pods)
        cluster.reconcile()
        cluster.missed = MissedOwners(cast(WorkloadActions, cluster.server))
        return cluster.roll_out(2).deleted

    assert ended()
    assert ended("a", "b") == []


@pytest.mark.parametrize(
    "found",
    [replica_set("old", "another"), replica_set("old", **{QUEUE: "lq"}), None],
    ids=["another owner's", "one with its queue", "one that is gone"],
)
def test_a_replica_set_that_stays(found: dict[str, Any] | None) -> None:
    cluster = with_pods(Cluster())
    cluster.reconcile()
    cluster.server.replica_sets["team/old"] = found
    assert cluster.roll_out(2).deleted == []


@pytest.mark.parametrize(
    "made",
    [
        pod("a", "StatefulSet", "another"),
        pod("a", "ReplicaSet", "d"),
        pod("a", "StatefulSet", "d", {"kueue.x-k8s.io/managed": "true"}),
        pod("a", "StatefulSet", "d", deletionTimestamp=LATER),
    ],
    ids=["another owner's", "another kind's", "a gated one", "one that ends"],
)
def test_a_pod_that_stays(made: dict[str, Any]) -> None:
    cluster = Cluster(STATEFUL_SETS)
    cluster.server.pods = [made]
    cluster.reconcile()
    assert cluster.roll_out(1).deleted == []


@pytest.mark.parametrize(
    "head",
    [
        {"creationTimestamp": BEFORE},
        {"labels": {}},
        {"deletionTimestamp": LATER},
        {"namespace": "kube-system"},
        {"namespace": "sluice"},
    ],
    ids=["older", "no queue", "leaving", "kube-system", "our own namespace"],
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.kind)
def test_these_are_left_alone(kind: Resource, head: dict[str, Any]) -> None:
    cluster = with_pods(Cluster(kind, **head))
    cluster.reconcile()
    server = cluster.roll_out(2)
    assert (server.patches, server.deleted, server.events) == ([], [], [])


def test_so_are_kinds_that_are_not_queued_and_a_cluster_without_the_webhook() -> None:
    cluster = Cluster(policy=Policy(frameworks=frozenset({"pod", "batch/job"})))
    assert cluster.reconcile().patches == []
    cluster = Cluster()
    cluster.server.configuration = None
    assert cluster.reconcile().patches == []


def test_a_deployment_whose_pods_name_their_queue_is_not_rolled_out() -> None:
    cluster = Cluster()
    labels = {"app": "d", QUEUE: "lq"}
    template = {"metadata": {"labels": labels}, "spec": {}}
    cluster.write({**cluster.owner, "spec": {**cluster.owner["spec"], "template": template}})
    assert cluster.reconcile().patches == []


def test_another_writer_that_takes_the_queue_away_again_and_again_wins() -> None:
    cluster = Cluster()
    spec = cluster.owner["spec"]
    for _ in range(MOST_PATCHES + 2):
        cluster.reconcile()
        cluster.write({**cluster.owner, "spec": spec})
    assert len(cluster.server.patches) == MOST_PATCHES
    assert cluster.server.events[-1] == ("TemplateNotChanged", "d")


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_is_told_on_the_owner(status: int) -> None:
    cluster = Cluster()
    cluster.server.refusal = ApiRefused(status, "", "no")
    assert cluster.reconcile().events == [("TemplateNotChanged", "d")]


def test_a_conflict_is_tried_again() -> None:
    cluster = Cluster()
    cluster.server.refusal = ApiRefused(409, "Conflict", "changed")
    with pytest.raises(ApiRefused):
        cluster.reconcile()
    assert cluster.server.events == []
    cluster.server.refusal = None
    assert cluster.reconcile().patches
