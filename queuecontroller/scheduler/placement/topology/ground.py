"""What nodes have for pods, and what is taken of it: by pods that are no topology's, and by
workloads that were given domains.

Of a topology whose lowest level is the host name, what a workload holds is held of nodes, and so by
all flavors together. Of another it is held of the lowest domain as a whole: which of its nodes the
scheduler takes is not known, so there only sums are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.selectors import Taint

HOSTNAME: Final = "kubernetes.io/hostname"
MOST_GONE: Final = 1000
"""Nodes that are gone and remembered: their pods may be put elsewhere."""
PODS: Final = "pods"
"""The resource of which every pod takes one."""
Amounts = Mapping[str, int]
Values = tuple[str, ...]
"""Of a domain: the value of each level's label, from the widest to its own."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    """It takes new pods: Ready, and not cordoned."""

    @property
    def host(self) -> str:
        """As a topology knows it."""
        return self.labels.get(HOSTNAME) or self.name


@dataclass(frozen=True, slots=True)
class Part:
    """So many pods of one pod set in one lowest domain."""

    place: Hashable
    """See `place_of`."""
    count: int
    each: Amounts
    """What one pod asks for, of PODS among it."""


@dataclass(slots=True)
class Ground:
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    hosts: dict[str, NodeFacts] = field(default_factory=dict)
    """The same by host name, and some that are gone."""
    _others: dict[str, dict[str, int]] = field(default_factory=dict)
    """By node: what pods hold that are no topology's."""
    _pods: dict[str, tuple[str, Amounts]] = field(default_factory=dict)
    """Those pods: node, and what for."""
    _held: dict[WorkloadKey, tuple[Part, ...]] = field(default_factory=dict)
    _of_place: dict[Hashable, dict[WorkloadKey, dict[str, int]]] = field(default_factory=dict)
    unheard: str = ""
    """What has not been heard of yet, and without which nothing can be placed."""
    changes: int = 0
    """Grows with every change."""
    freed: int = 0
    """Grows when what found no room may find some now."""

    def heard(self) -> None:
        """Of all there is."""
        if self.unheard:
            self.unheard = ""
            self.changes += 1
            self.freed += 1

    # -- nodes and the pods of others -------------------------------------------------------------

    def put_node(self, facts: NodeFacts) -> bool:
        """False: as it was."""
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
        if len(self.hosts) > len(self.nodes) + MOST_GONE:
            known = {one.host for one in self.nodes.values()}
            self.hosts = {host: facts for host, facts in self.hosts.items() if host in known}
        self.changes += 1
        return True

    def put_pod(self, key: str, node: str, each: Amounts) -> bool:
        """A pod of nobody's topology that is on a node. False: as it was."""
        if self._pods.get(key) == (node, each):
            return False
        self.drop_pod(key)
        self._pods[key] = (node, each)
        used = self._others.setdefault(node, {})
        for name, amount in each.items():
            if amount:  # of what it asks for 0 of, nothing is to be given back either
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
        """In place of what it held before."""
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
        """Who holds anything."""
        return iter(list(self._held))

    def holders(self, place: Hashable) -> Iterator[WorkloadKey]:
        return iter(list(self._of_place.get(place, ())))

    def taken(self, place: Hashable, gone: Iterable[WorkloadKey]) -> dict[str, int]:
        """What workloads hold there, but for those thought gone."""
        without = gone if isinstance(gone, (set, frozenset)) else set(gone)
        total: dict[str, int] = {}
        for key, sums in self._of_place.get(place, {}).items():
            if key not in without:
                for name, amount in sums.items():
                    total[name] = total.get(name, 0) + amount
        return total


def place_of(topology: str, levels: tuple[str, ...], values: Values) -> Hashable:
    """What is held of it: the node, or the lowest domain of that topology."""
    if levels[-1] == HOSTNAME:
        return values[-1]
    return (topology, values)
