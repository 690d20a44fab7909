"""A job and its Workload, with an API server that carries out actions and the job's own controller,
as far as their documents tell. Who decides about quota is left to the test."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from queuecontroller.frameworks import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    FinishWorkload,
    PodSetInfo,
    Refuse,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    SetPodsReady,
    Setting,
    Start,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    framework_of,
    is_suspended,
    on_create,
    reconcile,
    start_patch,
)
from queuecontroller.frameworks.comparing import holds
from queuecontroller.frameworks.patches import at, merged
from tests.queue.frameworks.samples import QUEUE, RUNTIME, pod

GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"

AROUND = Setting(runtime=RUNTIME)


def with_condition(
    workload: dict[str, Any], name: str, status: bool, **more: str
) -> dict[str, Any]:
    made = deepcopy(workload)
    conditions = made.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [one for one in conditions if one["type"] != name]
    conditions.append({"type": name, "status": str(status), **more})
    return made


def admitted(workload: dict[str, Any]) -> dict[str, Any]:
    made = with_condition(with_condition(workload, "QuotaReserved", True), "Admitted", True)
    made = with_condition(made, "Evicted", False)
    made["status"]["admission"] = {"clusterQueue": "cq"}
    return made


def evicted(workload: dict[str, Any]) -> dict[str, Any]:
    made = with_condition(workload, "Evicted", True, message="preempted by another")
    return with_condition(made, "Admitted", False)


@dataclass
class World:
    document: dict[str, Any] | None
    workload: dict[str, Any] | None = None
    around: Setting = AROUND
    history: list[Action] = field(default_factory=list)

    def step(self) -> list[Action]:
        fw = framework_of(self.document or self.like)
        assert fw is not None
        actions = reconcile(fw, self.document, self.workload, self.around)
        for one in actions:
            self.carry_out(one)
        self.history += actions
        self.controller()
        return actions

    def __post_init__(self) -> None:
        assert self.document is not None
        self.like = self.document

    def settle(self, rounds: int = 12) -> list[Action]:
        """Step until there is nothing to do. Returns the actions."""
        start = len(self.history)
        for _ in range(rounds):
            before = deepcopy(self.document)
            told = [one for one in self.step() if not isinstance(one, Refuse)]
            if not told and self.document == before:
                return self.history[start:]
        raise AssertionError(f"no end of it: {self.history[start:]}")

    def carry_out(self, action: Action) -> None:
        match action:
            case CreateWorkload(document):
                assert self.workload is None
                self.workload = deepcopy(document)
            case DeleteWorkload():
                assert self.workload is not None
                self.workload = None
            case UpdateWorkload(patch):
                assert patch
                changed = merged(self.workload, patch)
                assert changed != self.workload, f"a patch that changes nothing: {patch}"
                self.workload = changed
            case FinishWorkload(finished):
                assert self.workload is not None
                assert not holds(self.workload, "Finished")
                self.workload = with_condition(
                    self.workload, "Finished", True, reason=finished.reason
                )
            case ReleaseQuota():
                assert self.workload is not None
                self.workload = with_condition(self.workload, "QuotaReserved", False)
                self.workload["status"].pop("admission", None)
            case UpdateReclaimable(pods):
                assert self.workload is not None
                self.workload.setdefault("status", {})["reclaimablePods"] = [
                    {"name": name, "count": count} for name, count in pods.items()
                ]
            case SetPodsReady(ready):
                assert self.workload is not None
                self.workload = with_condition(self.workload, "PodsReady", ready)
            case Start():
                assert self.workload is not None
                assert holds(self.workload, "Admitted")
                self.start()
            case Suspend(patch) | Restore(patch) | ResetStartTime(patch):
                changed = merged(self.document, patch)
                assert changed != self.document, f"a patch that changes nothing: {patch}"
                self.document = changed
            case Refuse():
                pass

    def start(self) -> None:
        fw = framework_of(self.document)
        assert fw is not None
        assert self.document is not None
        assert self.workload is not None
        infos = [
            PodSetInfo(one["name"], one["count"], node_selector={"pool": "spot"})
            for one in self.workload["spec"]["podSets"]
        ]
        patch = start_patch(fw, self.document, infos, RUNTIME)
        assert patch
        self.document = merged(self.document, patch)

    def controller(self) -> None:
        """The job's own: it has pods while it is not suspended, and a Job a start time."""
        if self.document is None:
            return
        fw = framework_of(self.document)
        assert fw is not None
        running = not is_suspended(fw, self.document)
        status = self.document.setdefault("status", {})
        if fw.name == "batch/job":
            status["active"] = int(running)
            if running:
                status.setdefault("startTime", "2026-01-01T00:00:00Z")
        elif fw.kind == "RayJob" and status.get("jobDeploymentStatus") != "Complete":
            status["jobDeploymentStatus"] = "Running" if running else "Suspended"
        if not status:
            del self.document["status"]

    @property
    def running(self) -> bool:
        fw = framework_of(self.document)
        assert fw is not None
        assert self.document is not None
        return not is_suspended(fw, self.document)

    @property
    def pools(self) -> int:
        return str(at(self.document, ("spec",))).count("'pool': 'spot'")


def made_pod(
    name: str, group: str = "", total: int = 0, cpu: str = "1", **notes: str
) -> dict[str, Any]:
    """A pod as the API server has it after the webhook."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": f"2026-01-01T00:00:{len(name):02}Z",
            "labels": {QUEUE: "queue", **({GROUP: group} if group else {})},
            "annotations": {**({TOTAL: str(total)} if group else {}), **notes},
        },
        "spec": pod(cpu=cpu)["spec"],
    }
    fw = framework_of(document)
    assert fw is not None
    return merged(document, on_create(fw, document))
