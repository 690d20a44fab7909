"""Where the pods of an admitted workload go: asks the placer, sends paused pods back to where they
are, and gives up paused memory for who is more important."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.records import Assignment, Desired, PodState, WorkloadRecord

from .catalogue import Catalogue
from .nodes import Nodes
from .placing import Placed, Placer, Unplaced, Wanted

AVOID_NS: Final = 30_000_000_000
"""How long a node that refused a workload is not asked again for it, ns: longer than a report
takes to show why."""


def rests(one: Assignment) -> bool:
    """Paused, and meant to be."""
    return one.state is PodState.PAUSED and one.desired is Desired.PAUSE


def pod_annotations(manifest: str) -> dict[str, str]:
    """Annotations of the pod, or of the pods' template, in what the user submitted; a pod
    template's own are the ones that count. Empty when there is no manifest."""
    document = json.loads(manifest) if manifest else {}
    spec = document.get("spec") or {}
    template = spec.get("template") if isinstance(spec, dict) else None
    described = template if isinstance(template, dict) else document
    found = (described.get("metadata") or {}).get("annotations") or {}
    return {str(name): str(value) for name, value in found.items()}


class Placements:
    def __init__(self, catalogue: Catalogue, nodes: Nodes, placer: Placer | None) -> None:
        """Without a placer quota alone decides, and somebody else (Kubernetes) places."""
        self._catalogue = catalogue
        self._nodes = nodes
        self._placer = placer
        self._avoid: dict[tuple[WorkloadKey, str], int] = {}
        """Until when a node is not asked for a workload."""

    def avoid(self, key: WorkloadKey, node: str, now_ns: int) -> None:
        self._avoid[key, node] = now_ns + AVOID_NS

    def forgive(self, now_ns: int) -> bool:
        """Whether a node may be asked again from now on."""
        over = [pair for pair, until_ns in self._avoid.items() if until_ns <= now_ns]
        for pair in over:
            del self._avoid[pair]
        return bool(over)

    def place(self, record: WorkloadRecord, now_ns: int) -> list[Placed] | Unplaced:
        if self._placer is None:
            return []
        wanted = self._wanted(record, now_ns)
        if not wanted:
            return []
        paused = self._nodes.of_workload(record.key)
        ready = self._nodes.each_ready(now_ns)
        taken = [a for a in self._nodes.assignments.values() if a.workload != record.key]
        if paused:
            return self._back_to_its_place(wanted, paused, ready, taken)
        found = self._placer.place(wanted, ready, taken)
        if isinstance(found, Unplaced):
            self._free_from_paused(record, wanted, taken, now_ns)
        return found

    def _back_to_its_place(
        self,
        wanted: list[Wanted],
        paused: dict[str, Assignment],
        ready: Iterable[object],
        taken: list[Assignment],
    ) -> list[Placed] | Unplaced:
        """Paused pods go on where their memory is, on the same GPUs."""
        names = {getattr(node, "name", "") for node in ready}
        placed: list[Placed] = []
        for one in wanted:
            held = paused.get(one.pod)
            if held is None or held.desired is Desired.STOP:
                return Unplaced("what ran before has not stopped yet")
            if held.node not in names:
                return Unplaced(f"it is paused on node {held.node}, which is not connected")
            for share in held.gpus:
                used = sum(
                    s.share_ppm
                    for a in taken
                    for s in a.gpus
                    if s.uuid == share.uuid and a.ask.policy == "hard" and not rests(a)
                )
                if one.ask.policy == "hard" and used + share.share_ppm > 1_000_000:
                    return Unplaced(f"it is paused on GPU {share.uuid}, whose time is taken")
            placed.append(Placed(one.pod, held.node, held.gpus))
        return placed

    def _free_from_paused(
        self, record: WorkloadRecord, wanted: list[Wanted], taken: list[Assignment], now_ns: int
    ) -> None:
        """Stops paused work of a lower priority when its memory is all that is in the way."""
        assert self._placer is not None
        resting = [a for a in taken if rests(a) and a.priority < record.workload.priority]
        if not resting:
            return
        kept = [a for a in taken if a not in resting]
        found = self._placer.place(wanted, self._nodes.each_ready(now_ns), kept)
        if isinstance(found, Unplaced):
            return
        gpus = {share.uuid for one in found for share in one.gpus}
        for one in resting:
            if any(share.uuid in gpus for share in one.gpus):
                reason = f"its memory is needed by {record.key}, of a higher priority"
                self._nodes.tell(one, Desired.STOP, reason, now_ns)

    def _wanted(self, record: WorkloadRecord, now_ns: int) -> list[Wanted]:
        admission = record.workload.admission
        assert admission is not None
        wanted = []
        pod_sets = {one.name: one for one in record.workload.pod_sets}
        total = sum(one.count for one in admission.pod_sets if one.name in record.asks)
        annotations = pod_annotations(record.manifest)
        avoid = frozenset(
            node
            for (key, node), until_ns in self._avoid.items()
            if key == record.key and until_ns > now_ns
        )
        for given in admission.pod_sets:
            ask = record.asks.get(given.name)
            if ask is None:
                continue
            names = dict.fromkeys(given.flavors.values())
            flavors = [f for f in map(self._catalogue.flavor, names) if f is not None]
            for index in range(given.count):
                pod = "" if total == 1 else f"{given.name}-{index}"
                pod_set = pod_sets[given.name]
                wanted.append(
                    Wanted(pod, ask, pod_set, record.node, tuple(flavors), avoid, annotations)
                )
        return wanted
