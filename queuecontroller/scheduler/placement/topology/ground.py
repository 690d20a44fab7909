"""Resources of nodes for pods, and what is used of them: by pods without a topology, and by
workloads that were assigned domains.

In a topology whose lowest level is the host name, a workload's usage counts on its nodes, and so
for all flavors together. In another topology it counts on the lowest domain as a whole: the node
that kube-scheduler chooses within it is not known. What is free on each node without it still
limits the pods that a domain takes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.selectors import Taint

HOSTNAME: Final = "kubernetes.io/hostname"
MAX_GONE: Final = 1000
"""Number of removed nodes that are remembered, so that their pods can be replaced."""
PODS: Final = "pods"
"""The resource of which every pod takes one."""
Amounts = Mapping[str, int]
Values = tuple[str, ...]
"""A domain's label values, from the widest level to its own."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    """True if the node takes new pods: Ready, and not cordoned."""

    @property
    def host(self) -> str:
        """The node's host name, its value in a topology."""
        return self.labels.get(HOSTNAME) or self.name


@dataclass(frozen=True, slots=True)
class Part:
    """A number of pods of one pod set in one lowest domain."""

    place: Hashable
    """Key of the node or domain, see `place_of`."""
    count: int
    each: Amounts
    """Requests of one pod, with PODS."""


@dataclass(slots=True)
class Ground:
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    hosts: dict[str, NodeFacts] = field(default_factory=dict)
    """Nodes by host name, and some that were removed."""
    _others: dict[str, dict[str, int]] = field(default_factory=dict)
    """Usage of pods without a topology, by node."""
    _pods: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    """Node and requests of these pods."""
    _held: dict[WorkloadKey, tuple[Part, ...]] = field(default_factory=dict)
    _of_place: dict[Hashable, dict[WorkloadKey, dict[str, int]]] = field(default_factory=dict)
    missing_input: str = ""
    """Input that was not received yet and is required for placement; empty: nothing is missing."""
    changes: int = 0
    """Counter that grows with every change."""
    freed: int = 0
    """Counter that grows when a request that found no room may find some."""

    def inputs_received(self) -> None:
        """Record that all nodes and pods have been received."""
        if self.missing_input:
            self.missing_input = ""
            self.changes += 1
            self.freed += 1

    # -- nodes and the pods of others -------------------------------------------------------------

    def put_node(self, facts: NodeFacts) -> bool:
        """Add or update a node; False if it is unchanged."""
        before = self.nodes.get(facts.name)
        if before == facts:
            return False
        if before is not None and before.host != facts.host:
            self.hosts.pop(before.host, None)
        self.nodes[facts.name] = facts
        self.hosts[facts.host] = facts
        self.changes += 1
        self.freed += 1
        return True

    def drop_node(self, name: str) -> bool:
        if self.nodes.pop(name, None) is None:
            return False
        if len(self.hosts) > len(self.nodes) + MAX_GONE:
            known = {one.host for one in self.nodes.values()}
            self.hosts = {host: facts for host, facts in self.hosts.items() if host in known}
        self.changes += 1
        return True

    def put_pod(self, key: str, node: str, each: Amounts) -> bool:
        """Add or update a pod on a node that has no topology; False if it is unchanged."""
        if self._pods.get(key) == (node, each):
            return False
        self.drop_pod(key)
        self._pods[key] = (node, each)
        used = self._others.setdefault(node, {})
        for name, amount in each.items():
            if amount:  # requests of 0 are not counted, so they need not be released
                used[name] = used.get(name, 0) + amount
        self.changes += 1
        return True

    def drop_pod(self, key: str) -> bool:
        found = self._pods.pop(key, None)
        if found is None:
            return False
        node, each = found
        used = self._others[node]
        for name, amount in each.items():
            if amount:
                used[name] -= amount
                if not used[name]:
                    del used[name]
        if not used:
            del self._others[node]
        self.changes += 1
        self.freed += 1
        return True

    def others_on(self, node: str) -> Amounts:
        return self._others.get(node, {})

    # -- what workloads hold ----------------------------------------------------------------------

    def hold(self, key: WorkloadKey, parts: Iterable[Part]) -> None:
        """Reserve the parts, in place of what the key held before."""
        made = tuple(parts)
        if self._held.get(key, ()) == made:
            return
        freed = self.freed
        self.release(key)
        if not made:
            return
        self.freed = freed
        self._held[key] = made
        for part in made:
            sums = self._of_place.setdefault(part.place, {}).setdefault(key, {})
            for name, amount in part.each.items():
                sums[name] = sums.get(name, 0) + amount * part.count
        self.changes += 1

    def release(self, key: WorkloadKey) -> None:
        for place in {part.place for part in self._held.pop(key, ())}:
            del self._of_place[place][key]
            if not self._of_place[place]:
                del self._of_place[place]
            self.changes += 1
            self.freed += 1

    def held(self, key: WorkloadKey) -> tuple[Part, ...]:
        return self._held.get(key, ())

    def everybody(self) -> Iterator[WorkloadKey]:
        """All workloads that hold anything."""
        return iter(list(self._held))

    def lost_hosts(self) -> list[str]:
        """Hosts where workloads hold something, and whose node does not exist."""
        known = {one.host for one in self.nodes.values()}
        return [one for one in self._of_place if isinstance(one, str) and one not in known]

    def holders(self, place: Hashable) -> Iterator[WorkloadKey]:
        return iter(list(self._of_place.get(place, ())))

    def taken(self, place: Hashable, gone: Iterable[WorkloadKey]) -> dict[str, int]:
        """Usage of workloads at the place, without those in `gone`."""
        without = gone if isinstance(gone, (set, frozenset)) else set(gone)
        total: dict[str, int] = {}
        for key, sums in self._of_place.get(place, {}).items():
            if key not in without:
                for name, amount in sums.items():
                    total[name] = total.get(name, 0) + amount
        return total


def place_of(topology: str, levels: tuple[str, ...], values: Values) -> Hashable:
    """Key for usage in a domain: the node, or the lowest domain of that topology."""
    if levels[-1] == HOSTNAME:
        return values[-1]
    return (topology, values)
