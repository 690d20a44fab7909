"""A leader that moves running jobs to other GPUs, over nodes, objects and pods in memory: for tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from queuecontroller.cluster.cache.job_context import JOBS
from queuecontroller.cluster.cache.kinds import (
    CLUSTER_QUEUES,
    FLAVORS,
    LOCAL_QUEUES,
    TOPOLOGIES,
    WORKLOADS,
)
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, read_budget
from queuecontroller.cluster.podplacement.move_plans import MovePlans
from queuecontroller.cluster.podplacement.queued_pods import QueuedAsks
from queuecontroller.cluster.podplacement.restarts import JobRestarts
from queuecontroller.cluster.session import NullStore
from queuecontroller.cluster.status.workload_status import patch_of
from queuecontroller.gpushares.admission import Rules
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.pods import PodPlace
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.settings import EngineSettings, PreemptionProtection
from queuecontroller.scheduler.placement.topology.ground import Ground, NodeFacts
from queuecontroller.state.book import Book, BookSettings, Sharing
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.reflector import Changed
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.cluster.podplacement.service import Clock
from tests.queue.gpushares.extender.rooms import MIB, node, pod, share

S = 1_000_000_000
AT = "2026-11-22T10:00:00Z"
LONG_AGO = "2026-01-22T10:00:00Z"
NOW = int(datetime.fromisoformat("2026-11-22T10:01:00Z").timestamp()) * S
"""A minute later."""
COOLDOWN_S = 600
HOST = "kubernetes.io/hostname"
ASKED = ("cpu", "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
NOTHING: Mapping[str, str] = MappingProxyType({})
RESTART = {"sluice.dev/consolidation": "restart"}
NEVER = {"sluice.dev/consolidation": "never"}
EVENLY: dict[str, Any] = {"gpumem": 50_000, "gpucores": 20}
LITTLE: dict[str, Any] = {"gpumem": 20_000, "gpucores": 20}
WHOLE: dict[str, Any] = {"gpucores": 100}


def of_kueue(kind: str, name: str, spec: Any, namespace: str = "", **head: Any) -> dict[str, Any]:
    made = {"name": name, "uid": f"u-{name}", "resourceVersion": "1", "creationTimestamp": AT}
    if namespace:
        made["namespace"] = namespace
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {**made, **head},
        "spec": spec,
    }


class Elsewhere:
    """Pods of workloads, as the reconcilers know them."""

    def __init__(self) -> None:
        self.running: set[WorkloadKey] = set()

    def runs(self, key: WorkloadKey) -> bool:
        return key in self.running

    def evicted_before(self, key: WorkloadKey) -> Collection[tuple[str, str]]:
        return ()


class Lab:
    """Nodes of one GPU each, and the objects that a leader begins with."""

    def __init__(
        self,
        nodes: Iterable[str] = ("a", "b"),
        queue: dict[str, str] | None = None,
        enabled: bool = True,
        never: str = "",
        cpus: int = 64_000,
        racks: Mapping[str, str] = NOTHING,
        objects: Iterable[tuple[Any, dict[str, Any]]] = (),
        pods: Iterable[dict[str, Any]] = (),
        more: Mapping[str, Any] = NOTHING,
        quotas: Mapping[str, Any] = NOTHING,
        now_ns: int = NOW,
    ) -> None:
        """`more`: fields of the ClusterQueue's spec, `quotas`: quotas that are not ample."""
        self.nodes = [*nodes]
        self.given = (queue, enabled, never, cpus, racks)
        self.limits = {"more": more, "quotas": quotas}
        self.now_ns = now_ns
        self.racks = racks
        self.cache = ObjectCache()
        resources = [
            {"name": one, "nominalQuota": str(quotas.get(one, 1_000_000))} for one in ASKED
        ]
        groups = [
            {"coveredResources": [*ASKED], "flavors": [{"name": "f", "resources": resources}]}
        ]
        spec = {"resourceGroups": groups, "namespaceSelector": {}, **more}
        annotations = RESTART if queue is None else queue
        levels = [{"nodeLabel": one} for one in ("rack", HOST)]
        self.put(TOPOLOGIES, of_kueue("Topology", "racks", {"levels": levels}))
        flavor = {"topologyName": "racks"} if racks else {}
        self.put(FLAVORS, of_kueue("ResourceFlavor", "f", flavor))
        self.put(CLUSTER_QUEUES, of_kueue("ClusterQueue", "cq", spec, annotations=annotations))
        for team in ("t", "u"):
            self.put(LOCAL_QUEUES, of_kueue("LocalQueue", "q", {"clusterQueue": "cq"}, team))
        for kind, document in objects:
            self.put(kind, document)
        self.budgets = Budgets()
        self.elsewhere = Elsewhere()
        ground = Ground()
        asks = QueuedAsks(self.cache, lambda: Rules(), Defaults()).of
        settings = BookSettings(
            engine=EngineSettings(
                consolidation=enabled,
                protection=PreemptionProtection(classes=frozenset({never} - {""})),
            ),
            move_cooldown_ns=COOLDOWN_S * S,
        )
        restarts = JobRestarts(self.cache, self.budgets)
        sharing = Sharing(Defaults(), asks, restarts, restarts)
        self.book = Book(settings, False, lambda: "0", ground, sharing)
        self.book.run_elsewhere(self.elsewhere)
        self.shell = Shell(self.book, NullStore(0, "lease"), Clock())
        self.shell.start()
        self.ground = ground
        for name in self.nodes:
            self.join(name)
        ground.inputs_received()
        self.book.pods_received()
        self.book.nodes_room.follow(now_ns)
        self.pods: dict[WorkloadKey, dict[str, Any]] = {}
        for one in pods:
            self.run(one)
        self.mirror = Mirror(self.book, self.cache)
        self.mirror.begin(now_ns)

    def join(self, name: str) -> None:
        """A node comes, and its agent reports one GPU."""
        labels = {HOST: name, "rack": self.racks.get(name, "")}
        cpus = self.given[3]
        self.ground.put_node(NodeFacts(name, labels, {"cpu": cpus, "pods": 250}))
        self.book.desk.connect(Hello(name, capacity=node(name, 1)), self.now_ns)

    def put(self, kind: Any, document: dict[str, Any]) -> None:
        self.cache.take(kind, document)

    def run(self, document: dict[str, Any]) -> None:
        head = document["metadata"]
        key = WorkloadKey(f"{head['namespace']}/{head['name'].removesuffix('-0')}")
        self.pods[key] = document
        self.elsewhere.running.add(key)
        self.book.nodes_room.pods.take(document)

    # -- jobs -------------------------------------------------------------------------------------

    def workload(
        self, name: str, asked: dict[str, Any], team: str = "t", **more: Any
    ) -> dict[str, Any]:
        """A Workload and its Job. `more`: annotations of the Job, of the Workload (`own`) and of
        the pod's template (`template`), `priority`, and its class (`named`)."""
        document = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": team,
                "uid": f"j-{name}",
                "resourceVersion": "1",
                "annotations": more.get("annotations") or {},
            },
        }
        self.put(JOBS, document)
        owner = {"apiVersion": "batch/v1", "kind": more.get("kind") or "Job", "name": name}
        template = {
            "metadata": {"annotations": more.get("template") or {}},
            "spec": {**pod("x", **asked)["spec"], "schedulerName": "sluice-scheduler"},
        }
        template["spec"] |= more.get("spec") or {}
        template["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1"}
        pod_sets = [{"name": "main", "count": more.get("count", 1), "template": template}]
        if required := more.get("required"):
            pod_sets[0]["topologyRequest"] = {"required": required}
        spec: dict[str, Any] = {"queueName": "q", "podSets": pod_sets}
        spec["priority"] = more.get("priority", 0)
        if named := more.get("named"):
            spec["priorityClassRef"] = {
                "group": "kueue.x-k8s.io",
                "kind": "WorkloadPriorityClass",
                "name": named,
            }
        return of_kueue(
            "Workload",
            name,
            spec,
            team,
            annotations=more.get("own") or {},
            ownerReferences=[{**owner, "uid": f"j-{name}", "controller": True}],
        )

    def start(self, name: str, where: str, asked: dict[str, Any], **more: Any) -> WorkloadKey:
        """A job whose only pod runs on the GPU of a node; `since`: since when."""
        made = self.workload(name, asked, **more)
        team, since = made["metadata"]["namespace"], more.get("since", AT)
        key = WorkloadKey(f"{team}/{name}")
        shares = (share(f"GPU-{where}-0", asked["gpumem"] * MIB, asked["gpucores"] * 10_000),)
        place = PodPlace(where, {"main": shares})
        given = {
            "name": "main",
            "count": 1,
            "flavors": dict.fromkeys(ASKED, "f"),
            "resourceUsage": {"cpu": "1", "nvidia.com/gpu": "1"},
            "gpuPlaces": [{"place": place.text(), "count": 1}],
        }
        if self.racks:
            one_pod = {"domainCount": 1, "podCounts": {"universal": 1}}
            slices = [{**one_pod, "valuesPerLevel": [{"universal": where}]}]
            given["topologyAssignment"] = {"levels": [HOST], "slices": slices}
        conditions = [
            {
                "type": one,
                "status": "True",
                "reason": "r",
                "message": "m",
                "lastTransitionTime": since,
            }
            for one in ("QuotaReserved", "Admitted")
        ]
        conditions += more.get("conditions") or []
        admission = {"clusterQueue": "cq", "podSetAssignments": [given]}
        made["status"] = {"admission": admission, "conditions": conditions}
        self.store(made)
        running = pod(f"{name}-0", **asked)
        running["metadata"] |= {"namespace": team, "labels": {"app": name}}
        running["metadata"]["annotations"][PLACEMENT] = PodPlace(
            where, {"main": shares}, workload=key
        ).text()
        running["spec"]["nodeName"] = where
        self.run(running)
        return key

    def submit(self, name: str, asked: dict[str, Any], **more: Any) -> WorkloadKey:
        made = self.workload(name, asked, **more)
        self.store(made)
        self.settle()
        return WorkloadKey(f"{made['metadata']['namespace']}/{name}")

    def store(self, document: dict[str, Any]) -> None:
        self.put(WORKLOADS, document)
        head = document["metadata"]
        self.mirror.workload(f"{head['namespace']}/{head['name']}", document, self.now_ns)

    # -- time -------------------------------------------------------------------------------------

    def settle(self, now_ns: int | None = None) -> None:
        self.now_ns = now_ns = self.now_ns if now_ns is None else now_ns
        self.book.tick(now_ns)
        while True:
            result = self.book.workloads.cycle(now_ns)
            if not (result.reserved or result.preempted or result.more):
                return

    def stopped(self, key: WorkloadKey) -> None:
        """Its pod is gone."""
        self.book.nodes_room.pods.drop(self.pods.pop(key)["metadata"]["uid"])
        self.stopping(key)

    def stopping(self, key: WorkloadKey) -> None:
        """Its job has no pod any more, by its own status; the pod is deleted."""
        self.elsewhere.running.discard(key)
        if (document := self.pods.get(key)) is not None:
            document["metadata"]["deletionTimestamp"] = AT
            self.book.nodes_room.pods.take(document)
        self.book.workloads.complete_eviction(key, self.now_ns)
        self.settle()

    def guard(self, allowed: int, **labels: str) -> None:
        document = {
            "metadata": {"name": "guard", "namespace": "t"},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": allowed},
        }
        self.budgets.changed(Changed(Item("t/guard", "1", read_budget(document))))

    def new_leader(self, decided: bool = True) -> Lab:
        """One that begins with what this one has decided; without `decided`, with what is stored."""
        stored: list[tuple[Any, dict[str, Any]]] = []
        for document in self.cache.all_of(WORKLOADS):
            if not decided:
                stored.append((WORKLOADS, dict(document)))
                continue
            head = document["metadata"]
            record = self.book.workloads.records[WorkloadKey(f"{head['namespace']}/{head['name']}")]
            patch = patch_of(
                document, self.mirror.as_read(document), record.workload, None, self.now_ns
            )
            after = {**document, "status": {**(document.get("status") or {}), **patch}}
            stored.append((WORKLOADS, after))
        jobs = [(JOBS, dict(one)) for one in self.cache.all_of(JOBS)]
        found = type(self)(
            self.nodes,
            *self.given,
            objects=[*jobs, *stored],
            pods=[*self.pods.values()],
            now_ns=self.now_ns,
            **self.limits,
        )
        found.elsewhere.running &= self.elsewhere.running
        return found

    # -- answers ----------------------------------------------------------------------------------

    def is_moved(self, key: WorkloadKey) -> bool:
        return self.book.workloads.records[key].workload.is_moving

    def where(self, key: WorkloadKey) -> str:
        """Node of a workload; empty without quota."""
        slots = self.book.nodes_room.pods.reserved.slots(key)
        has_quota = self.book.workloads.records[key].workload.admission is not None
        return slots[0].place.node if slots and has_quota else ""

    def told(self, key: WorkloadKey) -> str:
        """Message of a pending workload after the leader has looked at rest."""
        self.book.moves = {}
        MovePlans(self.shell, lambda: True, lambda: True).look(self.book, self.now_ns)
        why = self.book.workloads.why_not(key)
        return self.book.with_moves(key, why.reason, why.message) if why is not None else ""
