"""A job of low priority is preempted, and its pod is checkpointed instead of stopped: its GPU goes to the other, its job is not suspended, and it
comes back to the same card, also by another leader; where its node refuses, it is stopped. The controller-manager and the agents are played."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api_only.placing.queued import (
    ASKED,
    HALF,
    PLENTY,
    clear,
    kept,
    make_pods,
    queue_job,
    shares,
)
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import (
    JOBS,
    Replica,
    apply,
    condition,
    define,
    door,
    is_served,
    is_true,
    of_kueue,
    suspended,
    workload_of,
)
from tests.cluster.scheduling import (
    PODS,
    Fleet,
    bound,
    message,
    placement,
    replicas,
    scheduler,
    wait_bound,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
NODE, CARD = "gpu-0", "GPU-gpu-0-0"
TOLD = "sluice.dev/checkpoint"
CHECKPOINT = {"sluice.dev/on-preemption": "checkpoint"}


@dataclass
class Agents(Fleet):
    """Answers what pods are told, and adds up what is on the card."""

    refuses: set[str] = field(default_factory=set)
    """Pods by name."""
    saved: dict[str, str] = field(default_factory=dict)
    """Annotations of checkpointed pods, by UID."""
    wrong: list[str] = field(default_factory=list)
    reports: Counter[str] = field(default_factory=Counter)
    """Number of reports by the UID of a pod in them."""

    def capacity(self, node: str) -> Any:
        pods = [one for one in self.plane.api.get(PODS)["items"] if bound(one) == node]
        self.running[node] = [self._report(one) for one in pods if placement(one)]
        there = [one for one in pods if one["metadata"]["uid"] not in self.saved]
        used = sum(each[2] for one in there for each in shares(placement(one)))
        if used > self.memory:
            names = [one["metadata"]["name"] for one in there]
            self.wrong.append(f"{used >> 20} MiB on the card: {names}")
        return super().capacity(node)

    def _report(self, pod: dict[str, Any]) -> Any:
        head = pod["metadata"]
        uid, told = head["uid"], (head.get("annotations") or {}).get(TOLD, "")
        self.reports[uid] += 1
        state = why = ""
        if head["name"] in self.refuses and told:
            state, why = "refused", "the driver makes no checkpoints"
        elif told.startswith("save"):
            state, self.saved[uid] = "saved", told
        elif told.startswith("restore"):
            state = "restored"
            self.saved.pop(uid, None)
        answer = message("PodCheckpoint", told=told, state=state, why=why) if state else None
        held = [
            message("PodShare", uuid=uuid, memory_bytes=memory, share_ppm=share)
            for _, uuid, memory, share in shares(placement(pod))
            if uid not in self.saved
        ]
        return message(
            "PodGpus",
            namespace=head["namespace"],
            pod=head["name"],
            uid=uid,
            shares=held,
            checkpoint=answer,
        )


def run(plane: ControlPlane, name: str, priority: str, **annotations: str) -> None:
    """Submit a job of one pod that takes more than half of the card."""
    document = queue_job(name, 1, **HALF)
    document["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority
    document["metadata"]["annotations"] = annotations
    plane.api.create("jobs", "default", document)


def follow(plane: ControlPlane, name: str) -> str:
    """Wait for a job's start, create its pod as the Job's controller does, and return its UID."""
    until(f"{name} is started", lambda: not suspended(plane, name), 120)
    make_pods(plane, name, range(1))
    started = {"active": 1, "startTime": "2026-11-22T10:00:00Z"}
    plane.api.patch(f"{JOBS}/{name}/status", {"status": started})
    wait_bound(plane, f"{name}-0")
    return str(plane.api.get(f"{PODS}/{name}-0")["metadata"]["uid"])


def end(plane: ControlPlane, name: str) -> None:
    plane.api.delete(f"{JOBS}/{name}")
    plane.api.delete(f"{PODS}/{name}-0", grace_s=0)


def phase(plane: ControlPlane, name: str) -> str:
    return str(condition(workload_of(plane, name), "Checkpointed").get("reason") or "")


def used(plane: ControlPlane) -> dict[str, str]:
    queue = plane.api.get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/gpus")
    [flavor] = (queue.get("status") or {}).get("flavorsReservation") or [{"resources": []}]
    return {one["name"]: one["total"] for one in flavor["resources"] if one["total"] != "0"}


def objects(plane: ControlPlane) -> None:
    resources = [{"name": one, "nominalQuota": PLENTY} for one in ASKED]
    groups = [
        {"coveredResources": list(ASKED), "flavors": [{"name": "gpus", "resources": resources}]}
    ]
    preemption = {"withinClusterQueue": "LowerPriority"}
    spec = {"resourceGroups": groups, "namespaceSelector": {}, "preemption": preemption}
    classes = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in (("low", 0), ("high", 100))
    ]
    cluster_queue = of_kueue("ClusterQueue", "gpus", spec)
    flavor = of_kueue("ResourceFlavor", "gpus", {})
    apply(plane, flavor, cluster_queue, door("gpus", "gpus"), *classes)


def test_a_preempted_pod_is_checkpointed_and_comes_back(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    if not is_served(plane):
        define(plane)
    with replicas(plane, tmp_path, 1) as (replica,):
        agents = Agents(plane, {tmp_path / "0.sock": replica}, gpus=1)
        if plane.api.find(f"/api/v1/nodes/{NODE}") is not None:
            plane.api.delete(f"/api/v1/nodes/{NODE}")
        agents.add(NODE)
        until("it decides", replica.leads, 60)
        objects(plane)
        with agents, scheduler(plane, tmp_path, replica.asked_port):
            until("it reports", lambda: agents.sessions_total >= 1, 60)
            there_and_back(plane, agents, replica)
            refused(plane, agents)
            clear(plane)
    assert agents.wrong == []


def there_and_back(plane: ControlPlane, agents: Agents, replica: Replica) -> None:
    run(plane, "low", "low", **CHECKPOINT)
    pod = follow(plane, "low")
    until("its node reports the pod", lambda: agents.reports[pod] > 1, 30)
    run(plane, "high", "high")
    until("its pod is checkpointed", lambda: phase(plane, "low") == "Checkpointed", 60)
    assert pod in agents.saved
    follow(plane, "high")
    assert not suspended(plane, "low")
    workload = workload_of(plane, "low")
    assert workload is not None
    assert is_true(workload, "Evicted")
    assert "; its pods are checkpointed" in condition(workload, "Evicted")["message"]
    assert "admission" not in workload["status"]
    [held] = workload["status"]["checkpointed"]["podSetAssignments"]
    assert set(held["resourceUsage"]) <= {"cpu"}
    until(
        "it says what it waits for",
        lambda: (
            f"it is checkpointed on node {NODE}: it needs 50000 MiB of its GPU {CARD}"
            in str(condition(workload_of(plane, "low"), "QuotaReserved").get("message"))
        ),
        30,
    )
    until("one GPU is used", lambda: used(plane)["nvidia.com/gpumem"] == "50k", 30)

    replica.end(signal.SIGKILL)
    replica.start()
    until("it decides again", replica.leads, 120)
    until("it reports again", lambda: agents.sessions_total >= 2, 60)
    assert phase(plane, "low") == "Checkpointed"
    assert used(plane)["nvidia.com/gpumem"] == "50k"

    end(plane, "high")
    until("its pod is restored", lambda: phase(plane, "low") == "Restored", 60)
    assert agents.saved == {}
    assert not suspended(plane, "low")
    restored = plane.api.get(f"{PODS}/low-0")
    assert restored["metadata"]["uid"] == pod
    [(node, card, _, _)] = kept(workload_of(plane, "low"))
    assert (node, card) == (NODE, CARD)
    until(
        "it is told nothing any more",
        lambda: TOLD not in plane.api.get(f"{PODS}/low-0")["metadata"]["annotations"],
        30,
    )


def refused(plane: ControlPlane, agents: Agents) -> None:
    """The same job; its node cannot do it this time."""
    agents.refuses.add("low-0")
    run(plane, "second", "high")
    until("its job is suspended", lambda: suspended(plane, "low"), 60)
    why = condition(workload_of(plane, "low"), "Checkpointed")
    assert (why["reason"], why["status"]) == ("CheckpointFailed", "False")
    assert why["message"].endswith("the driver makes no checkpoints")
    assert suspended(plane, "second"), "the other's pod still has the card"
    plane.api.delete(f"{PODS}/low-0", grace_s=0)
    plane.api.patch(f"{JOBS}/low/status", {"status": {"active": 0}})
    follow(plane, "second")
    end(plane, "second")
    end(plane, "low")
