"""Free amounts on the NUMA nodes of all nodes: their reports, less pods bound since."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.gpushares.extender.numa import (
    ADMITTED,
    Amounts,
    BadTopology,
    ContainerUse,
    Prediction,
    Topology,
    Zone,
    predict,
    read_topology,
    take,
    uses_of,
)

MAX_SHAPES: Final = 128
"""Kinds of pods whose predictions are cached."""
Document = Mapping[str, Any]


@dataclass(slots=True)
class _Bound:
    """A pod that was bound and that the node's report may not count yet."""

    taken: tuple[tuple[frozenset[int], Amounts], ...]
    started: bool = False
    """True if it had started at the last report."""


@dataclass(slots=True)
class _Node:
    reported: Topology
    topology: Topology
    """`reported` without what was bound since."""
    version: int = 0
    bound: dict[str, _Bound] = field(default_factory=dict)
    """Pods that were bound since the report, by UID."""


class NumaNodes:
    """The reports of all nodes, and the pods that were bound since."""

    def __init__(self, has_started: Callable[[str], bool]) -> None:
        """`has_started` returns True for a pod's UID once its node reports its containers."""
        self._has_started = has_started
        self.freed = 0
        """Counter that grows when a pod may be admitted that was refused."""
        self._refused = False
        """True if a pod was refused since the counter has grown."""
        self._nodes: dict[str, _Node] = {}
        self._of_pod: dict[str, str] = {}
        """Nodes of the pods that were bound, by UID."""
        self._known: OrderedDict[Hashable, dict[str, tuple[int, Prediction]]] = OrderedDict()
        """Predictions by what pods use, by node, each with the node's version."""
        self._versions = itertools.count(1)

    def report(self, name: str, document: Document | None) -> str:
        """Take in a node's report, or that it has none. Returns why it cannot be read, "" if it
        can."""
        before = self._nodes.pop(name, None)
        problem = ""
        topology = None
        if document is not None:
            try:
                topology = read_topology(document)
            except BadTopology as error:
                problem = str(error)
        bound = before.bound if before is not None else {}
        if topology is None or not topology.is_strict:
            for uid in bound:
                self._of_pod.pop(uid, None)
            self._note_freed(before is not None)
            return problem
        node = self._nodes[name] = _Node(topology, topology)
        for uid, one in bound.items():
            # The second report after its start has it: the first may have been on its way.
            if one.started:
                del self._of_pod[uid]
                continue
            one.started = self._has_started(uid)
            node.bound[uid] = one
        self._settle(node)
        self._note_freed(before is None or _is_freer(node.topology, before.topology))
        return ""

    def _note_freed(self, freed: bool) -> None:
        if freed and self._refused:
            self._refused = False
            self.freed += 1

    def predict(self, name: str, uses: tuple[ContainerUse, ...]) -> Prediction:
        node = self._nodes.get(name)
        if node is None:
            return ADMITTED
        known = self._known.get(uses)
        if known is None:
            known = self._known[uses] = {}
            while len(self._known) > MAX_SHAPES:
                self._known.popitem(last=False)
        self._known.move_to_end(uses)
        found = known.get(name)
        if found is None or found[0] != node.version:
            found = known[name] = node.version, predict(node.topology, uses)
        return found[1]

    def refusals(self, pod: Document, names: Iterable[str]) -> dict[str, str]:
        """The nodes among these whose kubelets would reject the pod, each with the reason. Raises
        KeyError, TypeError, AttributeError, QuantityError."""
        if not self._nodes:
            return {}
        uses = uses_of(pod)
        if not any(use.amounts for use in uses):
            return {}
        found = {name: self.predict(name, uses).reason for name in names if name in self._nodes}
        refused = {name: why for name, why in found.items() if why}
        self._refused |= bool(refused)
        return refused

    def numa_nodes(self, pod: Document, name: str) -> Mapping[str, frozenset[int]]:
        """NUMA nodes that the kubelet will choose, by container. Raises as `refusals` does."""
        return self.predict(name, uses_of(pod)).numa_nodes if name in self._nodes else {}

    def bind(self, pod: Document, name: str) -> None:
        """Count a pod that is being bound until a report has it. Raises as `refusals` does."""
        uid, node = str(pod["metadata"]["uid"]), self._nodes.get(name)
        self.forget(uid)
        if node is None:
            return
        if taken := self.predict(name, uses_of(pod)).taken:
            node.bound[uid] = _Bound(taken)
            self._of_pod[uid] = name
            self._settle(node)

    def forget(self, uid: str) -> None:
        """Stop counting a pod that was not bound, or has ended."""
        name = self._of_pod.pop(uid, None)
        if name is not None:
            node = self._nodes[name]
            del node.bound[uid]
            self._settle(node)
            self._note_freed(True)

    def _settle(self, node: _Node) -> None:
        free = {zone.number: dict(zone.free) for zone in node.reported.zones}
        for one in node.bound.values():
            for numbers, amounts in one.taken:
                take(free, numbers & free.keys(), amounts)
        zones = tuple(
            Zone(zone.number, zone.most, free[zone.number]) for zone in node.reported.zones
        )
        node.topology = Topology(node.reported.policy, node.reported.scope, zones)
        node.version = next(self._versions)


def _is_freer(now: Topology, before: Topology) -> bool:
    """True if a NUMA node has more of something, or the kubelet's rules are others."""
    if (now.policy, now.scope) != (before.policy, before.scope):
        return True
    known = {zone.number: zone.free for zone in before.zones}
    return any(
        amount > known.get(zone.number, {}).get(name, 0)
        for zone in now.zones
        for name, amount in zone.free.items()
    )
