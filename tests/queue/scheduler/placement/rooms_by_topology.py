"""A room of nodes by topology, and workloads that are placed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
from queuecontroller.scheduler.model.settings import TopologySettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME, Ground, NodeFacts
from queuecontroller.scheduler.placement.topology.room import TopologyRoom
from queuecontroller.scheduler.preemption.room import Verdict

NUMBERS = FlavorResources()


def node(name: str, labels: Mapping[str, str], cpu: int = 4, **fields: Any) -> NodeFacts:
    return NodeFacts(name, {HOSTNAME: name, **labels}, {"cpu": cpu, "pods": 50}, **fields)


def pods(name: str = "main", count: int = 1, cpu: int = 1, **fields: Any) -> PodSet:
    return PodSet(name, count, {"cpu": cpu}, pod_requests={"cpu": cpu}, **fields)


class Place:
    """A TopologyRoom of one flavor and topology."""

    def __init__(self, levels: tuple[str, ...], *nodes: NodeFacts, **settings: bool) -> None:
        self.ground = Ground()
        for one in nodes:
            self.ground.put_node(one)
        self.levels = levels
        self.labels: dict[WorkloadKey, dict[str, str]] = {}
        flavors = {"f": ResourceFlavor("f", topology_name="t")}
        self.room = TopologyRoom(
            self.ground,
            lambda: flavors,
            lambda: {"t": self.levels},
            TopologySettings(**settings),
            labels_of=lambda key: self.labels.get(key, {}),
        )

    def workload(
        self, name: str, *pod_sets: PodSet, namespace: str = "n", labels: Mapping[str, str] = {}
    ) -> Workload:
        made = Workload(namespace, name, pod_sets)
        self.labels[made.key] = dict(labels)
        return made

    def keep(self, workload: Workload) -> Verdict:
        given = [
            PodSetResult(one.name, one.count, {}, {"cpu": FlavorAssignment("f", Mode.FIT, 0)})
            for one in workload.pod_sets
        ]
        return self.room.keep(WorkloadInfo(workload, "cq", NUMBERS), Assignment(given), ())

    def admit(self, workload: Workload) -> Workload | str:
        """The Workload with its admission, or the reason why there is no room."""
        verdict = self.keep(workload)
        if verdict.refusal:
            return verdict.refusal
        return self.admitted(workload, verdict)

    def admitted(self, workload: Workload, verdict: Verdict) -> Workload:
        made = tuple(
            PodSetAssignment(one.name, one.count, {"cpu": "f"}, {}, verdict.topology.get(one.name))
            for one in workload.pod_sets
        )
        return replace(workload, admission=Admission("cq", made))


def domains(workload: Workload, pod_set: str = "main") -> list[tuple[tuple[str, ...], int]]:
    assert workload.admission is not None
    (found,) = [one for one in workload.admission.pod_sets if one.name == pod_set]
    assert found.topology is not None
    return list(found.topology.domains)
