"""Starting and stopping a job of each framework, through a real API server. No controller decides
here, and the frameworks' own operators and webhooks are absent: their kinds are small definitions
from our own table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuecontroller.frameworks import (
    PodSetInfo,
    ResetStartTime,
    Restore,
    Setting,
    framework_of,
    is_suspended,
    on_create,
    pod_sets,
    reconcile,
    start_patch,
    start_pod_patch,
    stop_patch,
    workload_of,
)
from queuecontroller.frameworks.patches import merged
from sluicecommon.kubernetes.resources import Resource
from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import apply, define, serves
from tests.kit.node import until
from tests.queue.frameworks.crds import crds_for_tests
from tests.queue.frameworks.samples import RUNTIME, SAMPLES, job, pod, sample

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TOLERATION = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> ControlPlane:
    define(control_plane)
    made = crds_for_tests()
    apply(control_plane, *made)
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    apply(control_plane, {**account, "metadata": {"name": "default", "namespace": "default"}})
    until("every kind is served", lambda: all(serves(control_plane, one) for one in made), 60)
    return control_plane


class Kept:
    """One object in the API server."""

    def __init__(self, plane: ControlPlane, document: dict[str, Any]) -> None:
        document["metadata"] = {
            key: value
            for key, value in document["metadata"].items()
            if key not in ("uid", "namespace")
        }
        fw = framework_of(document)
        assert fw is not None
        self.fw, self.plane = fw, plane
        group, _, version = document["apiVersion"].rpartition("/")
        resource = Resource(group, version, fw.plural)
        self.path = resource.path("default", document["metadata"]["name"])
        plane.kubectl("create", "--namespace", "default", "-f", "-", given=json.dumps(document))

    @property
    def now(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.api.get(self.path)
        return found

    def patch(self, patch: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        """Takes it, and holds the server to what we make of it ourselves."""
        wanted = wishes(merged(self.now, patch))
        answer = self.plane.api.patch(self.path + subresource, patch)
        if not subresource:
            assert wishes(answer) == wanted
        return wishes(answer)


def wishes(document: dict[str, Any]) -> dict[str, Any]:
    head = document["metadata"]
    kept = {key: head[key] for key in ("name", "labels", "annotations") if key in head}
    return {"metadata": kept, "spec": document["spec"]}


def infos(kept: Kept, document: dict[str, Any]) -> list[PodSetInfo]:
    return [
        PodSetInfo(
            one["name"],
            one["count"],
            {"kueue.x-k8s.io/podset": one["name"][:63]},
            {"kueue.x-k8s.io/workload": "w"},
            {"pool": "spot"},
            (TOLERATION,),
        )
        for one in pod_sets(kept.fw, document, RUNTIME)
    ]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_job_is_queued_started_and_put_back(plane: ControlPlane, name: str) -> None:
    kept = Kept(plane, sample(name))
    before = kept.now
    workload = workload_of(kept.fw, before, queue="queue", runtime=RUNTIME)
    stored = plane.api.call("POST", WORKLOADS.path("default"), workload)
    assert stored["spec"]["podSets"] == workload["spec"]["podSets"]
    assert reconcile(kept.fw, before, stored, Setting(runtime=RUNTIME)) == []

    while is_suspended(kept.fw, kept.now):
        kept.patch(start_patch(kept.fw, kept.now, infos(kept, before), RUNTIME))
    assert json.dumps(kept.now["spec"]).count('"pool": "spot"') == len(SAMPLES[name][1])
    while patch := stop_patch(kept.fw, kept.now, workload["spec"]["podSets"], RUNTIME):
        kept.patch(patch)
    assert wishes(kept.now) == wishes(before)


def test_a_job_that_ran_gets_its_template_back_in_three_writes(plane: ControlPlane) -> None:
    document = sample("batch/job")
    document["metadata"]["name"] = "ran"
    kept = Kept(plane, document)
    before = kept.now
    kept.patch(start_patch(kept.fw, before, infos(kept, before)))
    # What the job controller would write.
    kept.patch({"status": {"startTime": "2026-01-01T00:00:00Z", "active": 1}}, "/status")
    running = kept.now
    assert running["status"]["startTime"]
    both = merged(stop_patch(kept.fw, running), {"spec": {"template": before["spec"]["template"]}})
    both["spec"]["template"]["spec"]["nodeSelector"] = {"pool": None}
    with pytest.raises(ApiError, match="immutable"):
        plane.api.patch(kept.path, both)

    kept.patch(stop_patch(kept.fw, running))
    kept.patch({"status": {"active": 0}}, "/status")
    (reset,) = reconcile(kept.fw, kept.now, None)
    assert isinstance(reset, ResetStartTime)
    kept.patch(reset.patch, "/status")
    assert "startTime" not in kept.now["status"]
    (restore,) = reconcile(kept.fw, kept.now, None)
    assert isinstance(restore, Restore)
    kept.patch(restore.patch)
    assert wishes(kept.now) == wishes(before)


def test_a_job_with_fewer_pods_than_it_wants(plane: ControlPlane) -> None:
    document = sample("batch/job")
    document["metadata"] |= {
        "name": "fewer",
        "annotations": {
            "kueue.x-k8s.io/job-min-parallelism": "2",
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        },
    }
    document["spec"] |= {"completions": 4, "completionMode": "Indexed"}
    kept = Kept(plane, document)
    before = kept.now
    (info,) = infos(kept, before)
    kept.patch(start_patch(kept.fw, before, [PodSetInfo("main", 3, info.labels)]))
    assert (kept.now["spec"]["parallelism"], kept.now["spec"]["completions"]) == (3, 3)


def test_a_gated_pod_is_let_go_with_one_write(plane: ControlPlane) -> None:
    document = job("v1", "Pod", pod(nodeSelector={"zone": "a"})["spec"])
    fw = framework_of(document)
    assert fw is not None
    kept = Kept(plane, merged(document, on_create(fw, document)))
    assert is_suspended(fw, kept.now)
    assert kept.now["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    info = PodSetInfo("main", 1, {"a": "b"}, {}, {"pool": "spot"}, (TOLERATION,))
    kept.patch(start_pod_patch(kept.now, info))
    spec = kept.now["spec"]
    assert not spec.get("schedulingGates")
    assert spec["nodeSelector"] == {"zone": "a", "pool": "spot"}
    assert TOLERATION in spec["tolerations"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_what_passes_its_queue_on_is_taken(plane: ControlPlane, kind: str) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "main"}}, "template": pod()}
    del spec["template"]["spec"]["restartPolicy"]  # type: ignore[index]
    document = job("apps/v1", kind, spec)
    fw = framework_of(document)
    assert fw is not None
    kept = Kept(plane, merged(document, on_create(fw, document)))
    assert on_create(fw, kept.now) == {}
    head = kept.now["spec"]["template"]["metadata"]
    assert head["labels"]["kueue.x-k8s.io/queue-name"] == "queue"
    assert head["annotations"]["kueue.x-k8s.io/pod-suspending-parent"] == kind.lower()
