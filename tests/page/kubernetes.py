"""A cluster of fifty nodes in mode kubernetes: a real API server with its controllers and kube-scheduler, the real queue
controller, agents that report what is bound to their nodes, and the work of four teams."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from queuecontroller.kueueapi import GROUP
from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import KUEUE, apply, define, of_kueue
from tests.cluster.scheduling import GIB, Fleet, gpu_pod, replicas, scheduler
from tests.kit.node import until
from tests.kit.workplace import free_port
from tests.page.agents import MIG, PROFILES, Agent, card

NODES, CARDS = 50, 8
TEAMS = {"vision": ("research", 110), "speech": ("research", 100), "robots": ("research", 70), "search": ("company", 80)}  # fmt: skip
"""Cohort and GPUs of the quota."""
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "pretrain": (4, {"count": 8, "gpumem": 80_000, "gpucores": 100}),
    "finetune": (6, {"gpumem": 40_000, "gpucores": 50}),
    "evaluate": (4, {"gpumem": 20_000, "gpucores": 25}),
    "sweep": (2, {"gpumem": 30_000, "gpucores": 30}),
    "serve": (3, {"gpumem": 16_000, "gpucores": 20}),
}
"""Pods of a job of that kind, and the share of each."""
JOBS = {"pretrain": 3, "finetune": 2, "evaluate": 2, "sweep": 1, "serve": 1}
"""Jobs of each kind in each team."""
NOTEBOOKS = 12
CUT = {"gpu-45": (6, 7), "gpu-46": (7,)}
"""Cards in MIG mode."""
DRAINED = "gpu-20"
LOST = "gpu-49"
OFF_THE_BUS = 79
SICK = {("gpu-07", 3): OFF_THE_BUS, ("gpu-31", 5): 48}
"""Cards and the XID of each: it has fallen off the bus; an uncorrectable memory error."""
BY_HAND = ("gpu-11", 0)
"""A card on which a program runs that was started on the machine, in no grant."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEWAL_S = 10.0
PATIENT = ("kubernetes.leader_lease_s=120", "nodes.report_s=20", "nodes.lease_s=60")
"""Settings of a machine that has much else to do: no leader and no node is lost without reason."""


@dataclass
class Nodes(Fleet):
    """Nodes with an agent each."""

    agents: dict[str, Agent] = field(default_factory=dict)

    def join(self, name: str, **labels: Any) -> None:
        cut = CUT.get(name, ())
        self.agents[name] = Agent(
            name, [card(name, index, index in cut) for index in range(self.gpus)]
        )
        self.add(name, cpu="192", **labels)
        if cut:
            amounts = {MIG + profile: str(len(cut)) for profile in PROFILES}
            status = {"capacity": amounts, "allocatable": amounts}
            self.plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def capacity(self, node: str) -> Any:
        self.agents[node].sweep()
        return self.agents[node].capacity()

    def usage(self, node: str) -> list[Any]:
        return self.agents[node].usage()

    def fall_silent(self, node: str) -> None:
        self.names.remove(node)


@dataclass
class Kubelets:
    """The part of the kubelets that the page sees: bound pods run until they are deleted, and the agents hold their GPUs."""

    plane: ControlPlane
    nodes: Nodes
    _ended: threading.Event = field(default_factory=threading.Event)
    _running: set[str] = field(default_factory=set)
    _renewed_s: float = 0.0

    def __enter__(self) -> Kubelets:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            with contextlib.suppress(OSError):
                self._round()

    def _round(self) -> None:
        if time.monotonic() - self._renewed_s > RENEWAL_S:
            self._renew()
        bound: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in self.plane.api.get("/api/v1/pods")["items"]:
            node, head = one["spec"].get("nodeName"), one["metadata"]
            if not node or one["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            path = f"/api/v1/namespaces/{head['namespace']}/pods/{head['name']}"
            if "deletionTimestamp" in head:
                self.plane.api.delete(path, grace_s=0)
                continue
            bound[node].append(one)
            if head["uid"] not in self._running:
                self.plane.api.patch(f"{path}/status", {"status": _running(one)})
                self._running.add(head["uid"])
        for name, agent in self.nodes.agents.items():
            agent.hold(bound[name])

    def _renew(self) -> None:
        """Renew the nodes' Leases: without them the controller-manager evicts their pods."""
        for name in self.nodes.agents:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
            path = f"{LEASES}/{name}"
            if self._renewed_s:
                self.plane.api.patch(path, {"spec": spec})
            elif self.plane.api.find(path) is None:
                head = {"name": name, "namespace": "kube-node-lease"}
                self.plane.api.call("POST", LEASES, {"metadata": head, "spec": spec})
        self._renewed_s = time.monotonic()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    at = pod["metadata"]["creationTimestamp"]
    conditions = [
        {"type": one, "status": "True", "lastTransitionTime": at}
        for one in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    main = {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "none", "imageID": "none"}  # fmt: skip
    containers = [{**main, "state": {"running": {"startedAt": at}}}]
    return {
        "phase": "Running",
        "startTime": at,
        "conditions": conditions,
        "containerStatuses": containers,
    }


def job(name: str, team: str, pods: int, priority: str, queue: str = "main", **share: Any) -> dict[str, Any]:  # fmt: skip
    template = gpu_pod(name, cpu="2", **share)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": team,
            "labels": {
                "kueue.x-k8s.io/queue-name": queue,
                "kueue.x-k8s.io/priority-class": priority,
            },
        },
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {**template["spec"], "restartPolicy": "Never"}},
        },
    }


def queues() -> list[dict[str, Any]]:
    levels = ["topology/block", "topology/rack", "kubernetes.io/hostname"]
    made = [
        of_kueue("Topology", "racks", {"levels": [{"nodeLabel": one} for one in levels]}),
        of_kueue("ResourceFlavor", "h100", {"nodeLabels": {"pool": "gpus"}}),
        of_kueue("Cohort", "company", {}),
        of_kueue("Cohort", "research", {"parentName": "company"}),
    ]
    for name, value in (("urgent", 1000), ("batch", 0)):
        head = {"apiVersion": f"{GROUP}/v1beta2", "metadata": {"name": name}}
        made.append({**head, "kind": "WorkloadPriorityClass", "value": value})
    for team, (cohort, cards) in TEAMS.items():
        amounts = {
            "cpu": 20 * cards,
            "nvidia.com/gpu": cards,
            "nvidia.com/gpumem": 81_000 * cards,
            "nvidia.com/gpucores": 100 * cards,
        }
        if team == "search":
            amounts |= {MIG + profile: 3 for profile in PROFILES}
        quota = [{"name": name, "nominalQuota": str(one)} for name, one in amounts.items()]
        spec = {
            "cohortName": cohort,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team}},
            "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {
                    "coveredResources": list(amounts),
                    "flavors": [{"name": "h100", "resources": quota}],
                }
            ],
        }
        made += [
            _namespace(team),
            of_kueue("ClusterQueue", team, spec),
            of_kueue("LocalQueue", "main", {"clusterQueue": team}, namespace=team),
        ]
    held = {"clusterQueue": "speech", "stopPolicy": "Hold"}
    return [*made, of_kueue("LocalQueue", "nightly", held, namespace="speech")]


def work() -> list[dict[str, Any]]:
    """Jobs of every kind for every team: more than fit, so that some wait for quota, and some that wait for something else."""
    made = [job("embed-large", "search", 2, "batch", gpumem=120_000, gpucores=100)]
    for kind, (pods, share) in KINDS.items():
        priority = "urgent" if kind == "serve" else "batch"
        for number in range(JOBS[kind]):
            made += [job(f"{kind}-{number}", team, pods, priority, **share) for team in TEAMS]
    mig: dict[str, Any] = {"count": 0, "mig-3g.40gb": 1}
    instances = job("classify", "search", 2, "urgent", **mig)
    return [
        *made,
        instances,
        job("transcribe", "speech", 2, "batch", queue="nightly", gpumem=20_000, gpucores=25),
        job("archive", "vision", 1, "batch", queue="no-such-queue", gpumem=8_000, gpucores=10),
        job("ablation", "robots", 2, "batch", gpumem=20_000, gpucores=25),
    ]


def notebooks() -> list[dict[str, Any]]:
    """Pods of no queue; one of them asks for more than any card has."""
    made = [gpu_pod(f"jupyter-{number}", gpumem=10_000) for number in range(NOTEBOOKS)]
    mig: dict[str, Any] = {"count": 0, "mig-1g.10gb": 1}
    made.append(gpu_pod("jupyter-mig", **mig))
    made.append(gpu_pod("jupyter-large", gpumem=120_000, gpucores=10))
    for one in made:
        one["metadata"]["namespace"] = "notebooks"
    return made


@dataclass
class InKubernetes:
    plane: ControlPlane
    nodes: Nodes
    origin: str
    token: str

    def pods(self, phase: str) -> int:
        found = self.plane.api.get("/api/v1/pods")["items"]
        return sum(one["status"].get("phase") == phase for one in found)


@contextlib.contextmanager
def in_kubernetes(directory: Path) -> Iterator[InKubernetes]:
    with ControlPlane(directory / "plane", controllers=True) as plane:
        define(plane)
        port = free_port()
        place = directory / "queue"
        place.mkdir()
        with replicas(plane, place, 1, f"page.listen=127.0.0.1:{port}", *PATIENT) as (replica,):
            nodes = Nodes(plane, {place / "0.sock": replica}, gpus=CARDS)
            for number in range(NODES):
                labels = {"pool": "gpus", "topology/block": f"block-{number // 10}", "topology/rack": f"rack-{number // 5:02}"}  # fmt: skip
                nodes.join(f"gpu-{number:02}", **labels)
            nodes.agents[BY_HAND[0]].strangers[_uuid(BY_HAND)] = 3 * GIB
            plane.api.patch(f"/api/v1/nodes/{DRAINED}", {"spec": {"unschedulable": True}})
            until("it decides", replica.leads, 240)
            apply(plane, *queues(), _namespace("notebooks"), *_viewer())
            for one in (*TEAMS, "notebooks"):
                until(f"{one} has its account", lambda one=one: _has_account(plane, one), 240)  # type: ignore[misc]
            with nodes, Kubelets(plane, nodes), scheduler(plane, place, replica.asked_port):
                until("all report", lambda: nodes.failures or nodes.sessions_total >= NODES, 400)
                assert not nodes.failures, nodes.failures
                for pod in notebooks():
                    plane.api.create("pods", "notebooks", pod)
                for each in work():
                    plane.api.create("jobs", each["metadata"]["namespace"], each)
                token = plane.token("default", "viewer")
                yield InKubernetes(plane, nodes, f"http://127.0.0.1:{port}/", token)


def trouble(made: InKubernetes) -> None:
    """Trouble of a week: sick cards, a node that no longer reports, a workload that its owner holds."""
    for (node, index), code in SICK.items():
        agent, uuid = made.nodes.agents[node], _uuid((node, index))
        agent.xids.append((uuid, code))
        if code == OFF_THE_BUS:
            agent.gone.add(uuid)
    made.nodes.fall_silent(LOST)
    path = f"{KUEUE}/namespaces/robots/workloads"
    for one in made.plane.api.get(path)["items"]:
        if any(owner["name"] == "ablation" for owner in one["metadata"].get("ownerReferences", ())):
            made.plane.api.patch(f"{path}/{one['metadata']['name']}", {"spec": {"active": False}})


def _uuid(place: tuple[str, int]) -> Any:
    return card(*place).uuid


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _has_account(plane: ControlPlane, namespace: str) -> bool:
    return plane.api.find(f"/api/v1/namespaces/{namespace}/serviceaccounts/default") is not None


def _viewer() -> list[dict[str, Any]]:
    head = {"name": "viewer", "namespace": "default"}
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "page-viewer"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", **head}],
        },
    ]
