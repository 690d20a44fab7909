"""Migration from the standalone service to a cluster and back, with a real API server; objects
written in Kueue's older version on the way in; and the protections from preemption, as a user sees
them there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    KUEUE,
    Replica,
    apply,
    condition,
    define,
    door,
    finish,
    is_served,
    is_true,
    job,
    of_kueue,
    quota,
    serving,
    suspended,
    workload_of,
)
from tests.kit.node import until
from tests.kit.queue.controller import serving as standalone

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
WAIT_S = 120
OLD = "kueue.x-k8s.io/v1beta1"
HOST, RACK, BLOCK = "kubernetes.io/hostname", "example.com/rack", "example.com/block"


@pytest.fixture
def plane(control_plane: ControlPlane) -> ControlPlane:
    if not is_served(control_plane):
        define(control_plane)
    return control_plane


def old(kind: str, name: str, spec: Any, **head: Any) -> dict[str, Any]:
    return {**of_kueue(kind, name, spec, **head), "apiVersion": OLD}


def written(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def sluice(*words: str) -> str:
    command = [sys.executable, "-m", "queuecontroller", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_service_moves_into_a_cluster_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    """Its queues are written as Kueue's older version has them: `cohort`, and what was `Borrow`."""
    flavors = [{"name": "moved", "resources": [{"name": "cpu", "nominalQuota": 2}]}]
    spec = {
        "cohort": "moving",
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
        "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"},
    }
    rank = {"apiVersion": OLD, "kind": "WorkloadPriorityClass", "metadata": {"name": "first"}, "value": 7}  # fmt: skip
    queues = (
        old("ResourceFlavor", "moved", {}),
        rank,
        old("ClusterQueue", "moved", spec),
        old("LocalQueue", "moved", {"clusterQueue": "moved"}, namespace="default"),
    )
    runs, late = job("moved-runs", "moved", "2"), job("moved-late", "moved", "2")
    late["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "first"
    file = tmp_path / "service.yaml"
    with standalone(tmp_path / "service") as controller:
        controller.apply(written(*queues))
        controller.apply(written(runs))
        until("one is admitted", lambda: "Admitted" in phases(controller), WAIT_S)
        controller.apply(written(late))
        until("the other waits", lambda: "Pending" in phases(controller), WAIT_S)
        file.write_text(sluice("export", "--server", controller.address))
    # In the cluster it runs already, and the other is there.
    apply(plane, {**runs, "spec": {**runs["spec"], "suspend": False}}, late)
    running = {"active": 1, "ready": 1, "startTime": "2026-11-22T10:00:00Z"}
    plane.api.patch(f"{JOBS}/moved-runs/status", {"status": running})
    before = plane.api.get(f"{JOBS}/moved-runs")["metadata"]
    sluice("import", "-f", str(file), "--kubeconfig", str(plane.kubeconfig))
    found = plane.api.get(f"{KUEUE}/clusterqueues/moved")["spec"]
    assert (found["cohortName"], found["flavorFungibility"]["whenCanBorrow"]) == ("moving", "MayStopSearch")  # fmt: skip
    with serving(plane, tmp_path) as replica:
        until("it decides", replica.leads, WAIT_S)
        until("the other waits for it", lambda: waits(plane, "moved-late"), WAIT_S)
        assert is_true(workload_of(plane, "moved-runs"), "Admitted")
        now = plane.api.get(f"{JOBS}/moved-runs")
        assert (now["metadata"]["uid"], now["spec"]["suspend"]) == (before["uid"], False)
        assert now["status"]["startTime"] == "2026-11-22T10:00:00Z", "it was never stopped"
        assert (workload_of(plane, "moved-late") or {})["spec"]["priority"] == 7
        finish(plane, "moved-runs")
        until("the other runs", lambda: not suspended(plane, "moved-late"), WAIT_S)
    back = tmp_path / "cluster.yaml"
    back.write_text(sluice("export", "--kubeconfig", str(plane.kubeconfig)))
    with standalone(tmp_path / "again") as controller:
        sluice("import", "-f", str(back), "--leave-out", "--server", controller.address)
        (queue,) = controller.get("clusterqueues")["items"]
        assert queue["spec"]["cohortName"] == "moving"
        assert [one["metadata"]["name"] for one in controller.get("localqueues")["items"]] == [
            "moved"
        ]


def phases(controller: Any) -> list[str]:
    return [one["status"]["phase"] for one in controller.workloads()]


def waits(plane: ControlPlane, name: str) -> bool:
    return condition(workload_of(plane, name), "QuotaReserved").get("status") == "False"


def test_who_was_admitted_just_now_and_a_protected_class_stay(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """A preempted workload rests before it is admitted again."""
    classes = [
        {"apiVersion": KUEUE[6:], "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        for name, value in (("kept", 0), ("pressing", 100))
    ]  # fmt: skip
    policy = {"withinClusterQueue": "LowerPriority"}
    apply(plane, of_kueue("ResourceFlavor", "plain", {}), *classes)
    for name in ("young", "kept"):
        apply(plane, quota(name, 1, preemption=policy), door(name, name))
    settings = (
        "engine.protect_within_queue_s=8",
        "engine.never_preempted=kept",
        "engine.preempted_rests_s=6",
    )
    with serving(plane, tmp_path, *settings) as replica:
        until("it decides", replica.leads, WAIT_S)
        kept = ranked("stays", "kept", "kept")
        apply(plane, job("young", "young"), kept)
        until("both run", lambda: not any(suspended(plane, one) for one in ("young", "stays")), WAIT_S)  # fmt: skip
        begin_s = time.monotonic()
        apply(plane, ranked("urgent", "young", "pressing"), ranked("never", "kept", "pressing"))
        until("the young one made way", lambda: not suspended(plane, "urgent"), WAIT_S)
        assert time.monotonic() - begin_s > 4, "not before it had run for a while"
        finish(plane, "urgent")
        gone_s = time.monotonic()
        assert (workload_of(plane, "young") or {})["status"]["requeueState"]["requeueAt"]
        until("it runs again", lambda: not suspended(plane, "young"), WAIT_S)
        assert time.monotonic() - gone_s > 2, "not before it had rested"
        assert not suspended(plane, "stays")
        assert suspended(plane, "never")


def ranked(name: str, queue: str, priority_class: str) -> dict[str, Any]:
    made = job(name, queue)
    made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority_class
    return made


@pytest.mark.parametrize("balanced", [False, True])
def test_kueues_gate_spreads_what_prefers_a_topology(
    plane: ControlPlane, tmp_path: Path, balanced: bool
) -> None:
    """Two racks with a node of six CPUs each, in a block, and eight pods."""
    for name in ("even-1", "even-2"):
        labels = {HOST: name, RACK: f"rack-{name}", BLOCK: "even", "pool": "even"}
        apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})  # fmt: skip
        plane.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        amounts = {"cpu": "6", "memory": "8Gi", "pods": "110"}
        ready = [{"type": "Ready", "status": "True", "reason": "r"}]
        status = {"allocatable": amounts, "capacity": amounts, "conditions": ready}
        plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    flavors = [{"name": "even", "resources": [{"name": "cpu", "nominalQuota": 100}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    apply(
        plane,
        of_kueue("Topology", "even", {"levels": [{"nodeLabel": one} for one in (BLOCK, RACK, HOST)]}),
        of_kueue("ResourceFlavor", "even", {"nodeLabels": {"pool": "even"}, "topologyName": "even"}),
        of_kueue("ClusterQueue", "even", {"resourceGroups": groups, "namespaceSelector": {}}),
        door("even", "even"),
    )  # fmt: skip
    file = tmp_path / "configuration.yaml"
    head = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    file.write_text(yaml.safe_dump({**head, "featureGates": {"TASBalancedPlacement": balanced}}))
    name = f"even-{balanced}".lower()
    with serving(plane, tmp_path, f"kubernetes.kueue_configuration={file}") as replica:
        until("it decides", replica.leads, WAIT_S)
        made = job(name, "even", "1", 8)
        made["spec"]["template"]["metadata"] = {
            "annotations": {"kueue.x-k8s.io/podset-preferred-topology": RACK}
        }
        apply(plane, made)
        until("it runs", lambda: not suspended(plane, name), WAIT_S)
        counts = sorted(given(workload_of(plane, name) or {}))
        queue_log(replica)
        finish(plane, name)
        until("it has ended", lambda: is_true(workload_of(plane, name), "Finished"), WAIT_S)
    assert counts == ([4, 4] if balanced else [2, 6])


def queue_log(replica: Replica) -> None:
    assert "has no effect" not in replica.text


def given(workload: dict[str, Any]) -> list[int]:
    """Pods of each node."""
    (one,) = workload["status"]["admission"]["podSetAssignments"]
    found: list[int] = []
    for part in one["topologyAssignment"]["slices"]:
        counts = part["podCounts"]
        found += counts.get("individual") or [counts["universal"]] * part["domainCount"]
    return found
