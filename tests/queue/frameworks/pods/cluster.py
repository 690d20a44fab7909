"""Pods of a cluster, with an API server that carries out actions and a kubelet. Quota is left to the test."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from queuecontroller.frameworks import (
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    HoldWorkload,
    PodAction,
    PodSetInfo,
    Refuse,
    ReleasePod,
    ReleaseQuota,
    ResumeWorkload,
    SetPodsReady,
    StartPod,
    UpdateReclaimable,
    UpdateWorkload,
    WaitForReplacements,
    reconcile_pods,
    start_pod_patch,
)
from queuecontroller.frameworks.comparing import holds
from queuecontroller.frameworks.patches import merged
from tests.queue.frameworks.world import admitted, made_pod, with_condition


class Cluster:
    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {one["metadata"]["name"]: one for one in pods}
        self.workload: dict[str, Any] | None = None

    def settle(self, rounds: int = 15) -> list[PodAction]:
        done: list[PodAction] = []
        for _ in range(rounds):
            actions = reconcile_pods(self.pods.values(), self.workload)
            if not actions:
                return done
            for one in actions:
                self.carry_out(one)
            done += actions
            self.kubelet()
        raise AssertionError(f"no end of it: {done}")

    def carry_out(self, action: PodAction) -> None:
        match action:
            case CreateWorkload(document):
                assert self.workload is None
                self.workload = deepcopy(document)
            case DeleteWorkload():
                assert self.workload is not None
                self.workload = None
            case UpdateWorkload(patch):
                changed = merged(self.workload, patch)
                assert changed != self.workload
                self.workload = changed
            case StartPod(name, role):
                assert self.workload is not None
                assert holds(self.workload, "Admitted")
                assert role in [one["name"] for one in self.workload["spec"]["podSets"]]
                info = PodSetInfo(role, node_selector={"pool": "spot"})
                patch = start_pod_patch(self.pods[name], info)
                assert patch
                self.pods[name] = merged(self.pods[name], patch)
            case DeletePod(name, _, reason):
                if reason:
                    stopped = {"type": "TerminationTarget", "status": "True", "reason": reason}
                    self.pods[name].setdefault("status", {})["conditions"] = [stopped]
                self.delete(name)
            case ReleasePod(name, patch):
                changed = merged(self.pods[name], patch)
                assert changed != self.pods[name]
                self.pods[name] = changed
                assert "finalizers" not in changed["metadata"]
            case FinishWorkload():
                self.set("Finished", True)
            case ReleaseQuota():
                self.set("QuotaReserved", False)
            case HoldWorkload():
                self.set("QuotaReserved", False, reason="OnHold")
            case ResumeWorkload():
                self.set("QuotaReserved", False)
            case SetPodsReady(ready):
                self.set("PodsReady", ready)
            case WaitForReplacements(wait, _, _):
                self.set("WaitingForReplacementPods", wait)
            case UpdateReclaimable(pods):
                assert self.workload is not None
                self.workload.setdefault("status", {})["reclaimablePods"] = [
                    {"name": name, "count": count} for name, count in pods.items()
                ]
            case Refuse(problems):
                raise AssertionError(problems)

    def set(self, condition: str, status: bool, **more: str) -> None:
        assert self.workload is not None
        self.workload = with_condition(self.workload, condition, status, **more)

    def delete(self, name: str) -> None:
        self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        self.kubelet()

    def end(self, name: str, phase: str) -> None:
        self.pods[name].setdefault("status", {})["phase"] = phase

    def kubelet(self) -> None:
        """End the pods that are being deleted, and remove those without finalizers."""
        for name, one in list(self.pods.items()):
            head = one["metadata"]
            if "deletionTimestamp" in head and name in self.running:
                one.setdefault("status", {})["phase"] = "Failed"
            if "deletionTimestamp" in head and not head.get("finalizers"):
                del self.pods[name]

    def admit(self) -> None:
        assert self.workload is not None
        self.workload = admitted(self.workload)

    @property
    def running(self) -> list[str]:
        return [
            name
            for name, one in self.pods.items()
            if not one["spec"].get("schedulingGates")
            and one.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        ]

    @property
    def sets(self) -> list[tuple[str, int]]:
        assert self.workload is not None
        return [(one["name"], one["count"]) for one in self.workload["spec"]["podSets"]]


def kinds(actions: list[PodAction]) -> list[type]:
    return [type(one) for one in actions]


def group_of_three() -> Cluster:
    cluster = Cluster(*(made_pod(name, "group", 3) for name in "abc"))
    cluster.settle()
    cluster.admit()
    cluster.settle()
    return cluster
