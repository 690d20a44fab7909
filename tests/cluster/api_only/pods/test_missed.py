"""Mode kubernetes while no replica answers the API server: killed, or hung. Pods of every kind that
name a queue are created meanwhile; none of them may run without being counted."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.scheduler.model.reasons import TEMPLATE_CHANGED
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import (
    DEADLINE_S,
    JOBS,
    UNANSWERED,
    WORKLOADS,
    Replica,
    apply,
    asked,
    door,
    is_true,
    job,
    of_kueue,
    quota,
    suspended,
)
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PODS = "/api/v1/namespaces/default/pods"
APPS = "/apis/apps/v1/namespaces/default"
GATE = {"name": "kueue.x-k8s.io/admission"}
QUEUE = "kueue.x-k8s.io/queue-name"
WORKLOAD = "kueue.x-k8s.io/workload"
PARENT = "kueue.x-k8s.io/pod-suspending-parent"


def plane(place: Path, *settings: str) -> Iterator[tuple[ControlPlane, Replica]]:
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as made,
        asked(made, place, *settings) as replica,
    ):
        apply(made, of_kueue("ResourceFlavor", "plain", {}), quota("small", 1), door("lq", "small"))
        apply(made, serving("Deployment", "before", 1))
        until("a pod is admitted", lambda: len(started(made)) == 1, DEADLINE_S)
        yield made, replica


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[tuple[ControlPlane, Replica]]:
    yield from plane(tmp_path)


@pytest.fixture
def ignoring(tmp_path: Path) -> Iterator[tuple[ControlPlane, Replica]]:
    yield from plane(tmp_path, "kubernetes.webhooks_queued_policy=Ignore")


def pod(name: str, **head: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    labels = {QUEUE: "lq", **head.pop("labels", {})}
    metadata = {"name": name, "namespace": "default", "labels": labels, **head}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}  # fmt: skip


def serving(kind: str, name: str, replicas: int, passes_on: bool = True) -> dict[str, Any]:
    """A Deployment, StatefulSet or ReplicaSet of the queue. `passes_on`: its pod template names the queue, too."""
    template = pod("none", labels={"app": name})
    if not passes_on:
        del template["metadata"]["labels"][QUEUE]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "labels": {QUEUE: "lq"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
            **({"serviceName": name} if kind == "StatefulSet" else {}),
        },
    }  # fmt: skip


def of_a_group(name: str) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/pod-group-name": "pg"}
    return pod(name, labels=labels, annotations={"kueue.x-k8s.io/pod-group-total-count": "2"})


EVERY = (
    (PODS, pod("bare")),
    (PODS, of_a_group("pg-1")),
    (PODS, of_a_group("pg-2")),
    (JOBS, job("a-job", "lq", suspend=False)),
    (f"{APPS}/deployments", serving("Deployment", "deployed", 2)),
    (f"{APPS}/statefulsets", serving("StatefulSet", "stateful", 2)),
    (f"{APPS}/replicasets", serving("ReplicaSet", "replicated", 2)),
    (f"{APPS}/deployments", serving("Deployment", "owned-deployed", 2, False)),
    (f"{APPS}/statefulsets", serving("StatefulSet", "owned-stateful", 2, False)),
)
OWNERS = ("stateful", "owned-deployed", "owned-stateful")
"""Their pods have nothing of what the webhook would have given them."""


def started(plane: ControlPlane) -> list[str]:
    """Pods that a kubelet could start."""
    return [
        one["metadata"]["name"]
        for one in plane.api.get(PODS)["items"]
        if GATE not in (one["spec"].get("schedulingGates") or ())
        and not one["metadata"].get("deletionTimestamp")
    ]


def uncounted(plane: ControlPlane) -> list[str]:
    """Pods that a kubelet could start and for which no Workload is admitted."""
    admitted = {
        one["metadata"]["name"]
        for one in plane.api.get(WORKLOADS)["items"]
        if is_true(one, "Admitted")
    }
    workloads = {
        one["metadata"]["name"]: (one["metadata"].get("annotations") or {}).get(WORKLOAD)
        for one in plane.api.get(PODS)["items"]
    }
    return [one for one in started(plane) if workloads.get(one) not in admitted]


def create(plane: ControlPlane, path: str, document: dict[str, Any]) -> str:
    """The error, empty if it was created."""
    try:
        plane.api.call("POST", path, document)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_no_pod_of_any_kind_runs_uncounted_while_no_replica_answers(
    refusing: tuple[ControlPlane, Replica], how: str
) -> None:
    plane, replica = refusing
    assert uncounted(plane) == []
    if how == "killed":
        replica.end(signal.SIGKILL)
    else:
        assert replica.process is not None
        os.kill(replica.process.pid, signal.SIGSTOP)
    plane.api.patch(f"{APPS}/deployments/before", {"spec": {"replicas": 3}})
    for path, document in EVERY:
        error = create(plane, path, document)
        if document["kind"] == "ReplicaSet":  # No kind of job, but its pods are refused.
            assert error == ""
            continue
        assert UNANSWERED in error, f"{document['kind']} {document['metadata']['name']}: {error}"
    worker = pod("of-a-set", annotations={PARENT: "leaderworkerset"})
    del worker["metadata"]["labels"][QUEUE]
    assert UNANSWERED in create(plane, PODS, worker), "a pod of a LeaderWorkerSet has no label"
    assert create(plane, JOBS, job("free", "", suspend=False)) == "", "it names no queue"

    def scaled() -> bool:
        events = plane.api.get("/api/v1/namespaces/default/events")["items"]
        return any(
            one["reason"] == "FailedCreate" and UNANSWERED in one["message"] for one in events
        )

    until("its controller tries and is refused", scaled, DEADLINE_S)
    names = [one for one in uncounted(plane) if not one.startswith("free-")]
    assert names == []
    if how == "killed":
        replica.start()
    else:
        os.kill(replica.process.pid, signal.SIGCONT)  # type: ignore[union-attr]

    def accepted() -> bool:
        return all(
            not error or "AlreadyExists" in error or "already exists" in error
            for path, document in EVERY
            for error in [create(plane, path, document)]
        )

    until("all are accepted again", accepted, DEADLINE_S)
    until(
        "the Deployment has the pods that it lacked",
        lambda: sum(one["metadata"]["name"].startswith("before-") for one in plane.api.get(PODS)["items"]) == 3,
        DEADLINE_S,
    )  # fmt: skip
    assert suspended(plane, "a-job")
    assert [one for one in uncounted(plane) if not one.startswith("free-")] == []
    assert len([one for one in started(plane) if not one.startswith("free-")]) == 1, "quota for one"


def test_what_was_let_through_is_ended_or_taken_in_when_a_replica_is_back(
    ignoring: tuple[ControlPlane, Replica],
) -> None:
    plane, replica = ignoring
    replica.end(signal.SIGKILL)
    for path, document in EVERY:
        assert create(plane, path, document) == ""
    until("they could run", lambda: len(uncounted(plane)) >= 12, DEADLINE_S)
    replica.start()
    until("none is left that is not counted", lambda: not uncounted(plane), DEADLINE_S)
    until("the job waits", lambda: suspended(plane, "a-job"), DEADLINE_S)

    def told(reason: str, part: str) -> set[str]:
        events = plane.api.get("/api/v1/namespaces/default/events")["items"]
        return {
            one["involvedObject"]["name"]
            for one in events
            if one["reason"] == reason and part in one["message"]
        }

    pods = {"bare", "pg-1", "pg-2"}
    until("pods say why", lambda: pods <= told("Stopped", "not counted"), DEADLINE_S)
    # Not that their pods were ended: their controllers' rollouts may have been quicker.
    changed = partial(told, TEMPLATE_CHANGED, "pods without it are ended")
    until("owners say what was changed", lambda: set(OWNERS) <= changed(), DEADLINE_S)

    def all_are_made_again() -> bool:
        of_each = Counter(one.rpartition("-")[0] for one in held(plane))
        deployed = of_each["replicated"], sum(of_each[one] for one in of_each if one.startswith("owned-deployed"))  # fmt: skip
        return deployed == (2, 2) and all(of_each[one] for one in OWNERS if "stateful" in one)

    until("its controllers' pods are made again, and gated", all_are_made_again, DEADLINE_S)
    templates = [plane.api.get(f"{APPS}/deployments/owned-deployed"), *(plane.api.get(f"{APPS}/statefulsets/{one}") for one in OWNERS if "stateful" in one)]  # fmt: skip
    assert [one["spec"]["template"]["metadata"]["labels"].get(QUEUE) for one in templates] == [
        "lq"
    ] * 3
    assert uncounted(plane) == []


def held(plane: ControlPlane) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in plane.api.get(PODS)["items"]
        if GATE in (one["spec"].get("schedulingGates") or ())
    ]
