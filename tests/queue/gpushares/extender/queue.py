"""A queue's room over nodes with GPUs, and the extender beside it, without an API server: for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from queuecontroller.gpushares.extender.answers import Defaults, Extender
from queuecontroller.gpushares.extender.ledger import PodLedger
from queuecontroller.gpushares.extender.pods import PodAsk, PodPlace, read_pod
from queuecontroller.gpushares.extender.queued_room import SharesOfQueued
from queuecontroller.scheduler.model.assignment import (
    Assignment,
    FlavorAssignment,
    Mode,
    PodSetResult,
)
from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.stock import Stock
from queuecontroller.scheduler.placement.topology.ground import Ground, NodeFacts
from queuecontroller.scheduler.placement.topology.room import TopologyRoom
from queuecontroller.scheduler.preemption.room import Verdict
from sluicecommon.pod_annotations import PLACEMENT
from tests.queue.gpushares.extender.rooms import pod

NUMBERS = FlavorResources()
HOST = "kubernetes.io/hostname"
RACK = "example.com/rack"
FLAVORS = {
    "any": ResourceFlavor("any"),
    "pool": ResourceFlavor("pool", {"pool": "a"}),
    "racks": ResourceFlavor("racks", topology_name="racks"),
}


@dataclass
class Queue:
    """`asks`: by workload and pod set, a pod as it will be made."""

    nodes: Mapping[str, NodeCapacity]
    cpus: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    levels: tuple[str, ...] = (RACK, HOST)
    asks: dict[WorkloadKey, dict[str, PodAsk]] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)

    def __post_init__(self) -> None:
        self.stock = Stock()
        self.ledger = PodLedger(self.stock)
        self.ground = Ground()
        for name, capacity in self.nodes.items():
            self.stock.report(name, capacity)
            allocatable = {"cpu": self.cpus.get(name, 64_000), "pods": 250}
            labels = {HOST: name, **self.labels.get(name, {})}
            self.ground.put_node(NodeFacts(name, labels, allocatable))
        self.shares = SharesOfQueued(
            self.stock, self.ledger, self.defaults, lambda key: self.asks.get(key, {})
        )
        self.shares.inputs_received()
        self.room = TopologyRoom(
            self.ground, lambda: FLAVORS, lambda: {"racks": self.levels}, devices=self.shares
        )
        self.extender = Extender(
            self.stock,
            self.ledger,
            self.defaults,
            lambda document, nodes: self.placed(document, nodes),
        )

    def taint(self, name: str) -> None:
        facts = self.ground.nodes[name]
        self.ground.put_node(replace(facts, taints=(Taint("k", "v", "NoSchedule"),)))

    def submit(self, name: str, count: int = 1, **asked: Any) -> WorkloadInfo:
        """Submit a workload of one pod set `main`."""
        return self.submit_sets(name, {"main": (count, asked)})

    def submit_sets(
        self,
        name: str,
        sets: Mapping[str, tuple[int, Mapping[str, Any]]],
        **fields: Any,
    ) -> WorkloadInfo:
        key = WorkloadKey(f"t/{name}")
        self.asks[key] = {
            one: read_pod(pod("template", **asked)) for one, (_, asked) in sets.items()
        }
        pod_sets = tuple(
            PodSet(
                one, count, {"cpu": 1000}, pod_requests={"cpu": 1000, "nvidia.com/gpu": 1}, **fields
            )
            for one, (count, _) in sets.items()
        )
        return WorkloadInfo(Workload("t", name, pod_sets, uid=f"u-{name}"), "cq", NUMBERS)

    def given(self, info: WorkloadInfo, flavor: str = "any") -> Assignment:
        return Assignment(
            [
                PodSetResult(
                    one.name, one.count, {}, {"cpu": FlavorAssignment(flavor, Mode.FIT, 0)}
                )
                for one in info.workload.pod_sets
            ]
        )

    def keep(self, info: WorkloadInfo, flavor: str = "any", gone: Any = ()) -> Verdict:
        return self.room.keep(info, self.given(info, flavor), gone)

    def admitted(self, info: WorkloadInfo, verdict: Verdict, flavor: str = "any") -> Workload:
        """The Workload as it would be stored after admission."""
        given = tuple(
            PodSetAssignment(
                one.name,
                one.count,
                {"cpu": flavor},
                {},
                verdict.topology.get(one.name),
                verdict.places.get(one.name, ()),
            )
            for one in info.workload.pod_sets
        )
        return replace(info.workload, admission=Admission("cq", given))

    # -- pods of workloads, known by an annotation that the test writes ---------------------------

    def placed(self, document: Mapping[str, Any], nodes: Any) -> PodPlace | str | None:
        name = document["metadata"]["annotations"].get("workload")
        key = WorkloadKey(f"t/{name}")
        if not name or not self.ledger.reserved.has(key):
            return None
        uid = document["metadata"]["uid"]
        pod_set = document["metadata"]["annotations"].get("set", "main")
        found = self.ledger.reserved.offer(key, pod_set, uid, nodes, lambda _: True)
        return found or "all places are held"

    def pod_of(
        self, workload: str, name: str, pod_set: str = "main", **asked: Any
    ) -> dict[str, Any]:
        made = pod(name, **asked)
        made["metadata"]["annotations"] |= {"workload": workload, "set": pod_set}
        return made

    def bind(self, document: dict[str, Any]) -> str:
        """Filtered, bound to the first node that passed, and reported by the watch; the node, or
        empty."""
        passed = self.extender.filter(document, list(self.nodes)).names
        if not passed:
            return ""
        place = self.extender.place(document, passed[0])
        if not isinstance(place, PodPlace):
            return ""
        uid = document["metadata"]["uid"]
        self.ledger.assume(uid, place)
        document["spec"]["nodeName"] = place.node
        document["metadata"]["annotations"][PLACEMENT] = place.text()
        self.ledger.take(document)
        return place.node


def uuids(verdict: Verdict, pod_set: str = "main") -> list[str]:
    return [
        share["uuid"]
        for one in verdict.places[pod_set]
        for _ in range(one.count)
        for shares in json.loads(one.place)["containers"].values()
        for share in shares
    ]
