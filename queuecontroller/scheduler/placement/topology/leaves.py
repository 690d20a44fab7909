"""Free resources for the pods of one pod set, by the lowest domains of a topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.topology.choose import Given, pods_beside, pods_in
from queuecontroller.scheduler.placement.topology.ground import (
    HOSTNAME,
    Ground,
    Values,
    place_of,
)
from queuecontroller.scheduler.placement.topology.wishes import Placing


@dataclass(slots=True)
class Leaves:
    free: dict[Values, dict[str, int]] = field(default_factory=dict)
    """Free resources by lowest domain."""
    nodes: dict[Values, dict[str, int]] = field(default_factory=dict)
    """Nodes of each domain, and how many of the pods would fit there without devices and without
    other workloads."""
    excluded: Counter[str] = field(default_factory=Counter)
    """Number of excluded nodes by reason."""
    limits: dict[Values, tuple[int, int]] = field(default_factory=dict)
    """Number of pods that the nodes of each domain take one by one, and of those beside the leader
    (-1: no node takes the leader); empty where every domain is one node, or only sums count."""
    own: dict[str, dict[str, int]] = field(default_factory=dict)
    """Free resources of each node, where there are limits."""
    too_small: Counter[str] = field(default_factory=Counter)
    """Number of nodes that take no pod, by what they lack, where there are limits."""

    def left_out(self, each: Mapping[str, int]) -> list[str]:
        """Texts for the excluded nodes, and for those where not one pod fits."""
        lacking = Counter(self.too_small)
        for values, free in self.free.items():
            if values in self.limits and not self.limits[values][0]:
                continue
            for resource, amount in each.items():
                if not pods_in(free, {resource: amount}):
                    lacking[resource] += 1
                    break
        parts = [f"{count} {why}" for why, count in sorted(self.excluded.items())]
        return parts + [f"{count} without {name} for a pod" for name, count in lacking.items()]

    def limit(self, own: Mapping[str, int], alone: int, values: Values, placing: Placing) -> None:
        """Add what a node takes, by its own resources, to the limits of its domain."""
        ask = placing.ask
        others, others_beside = self.limits.get(values, (0, -1))
        if not alone:
            lacks = (one for one, amount in ask.each.items() if not pods_in(own, {one: amount}))
            self.too_small[next(lacks)] += 1
        most = others_beside + alone if others_beside >= 0 else -1
        if ask.leader is not None and (beside := pods_beside(own, ask.leader, ask.each)) >= 0:
            most = max(most, others + beside)
        self.limits[values] = (others + alone, most)

    def use(self, placing: Placing, found: Given, mine: Counter[tuple[Hashable, str]]) -> None:
        """Count pods that were placed on the nodes of their domains, for the workload's other pod
        sets: kube-scheduler decides between these nodes, the fullest are assumed."""
        ask = placing.ask
        if found.leader is not None and ask.leader is not None:
            beside = {
                node: pods_beside(self.own[node], ask.leader, ask.each)
                - pods_in(self.own[node], ask.each)
                for node in self.nodes[found.leader]
                if pods_in(self.own[node], ask.leader)
            }
            if beside:
                self._use(max(beside, key=lambda node: (beside[node], node)), ask.leader, 1, mine)
        for values, count in found.workers:
            room = {node: pods_in(self.own[node], ask.each) for node in self.nodes[values]}
            left = {node: [self.own[node].get(one, 0) for one in ask.each] for node in room}
            for node in sorted(room, key=lambda node: (room[node], left[node], node)):
                here = min(room[node], count)
                count -= here
                if here:
                    self._use(node, ask.each, here, mine)

    def _use(
        self,
        node: str,
        each: Mapping[str, int],
        count: int,
        mine: Counter[tuple[Hashable, str]],
    ) -> None:
        for resource, amount in each.items():
            self.own[node][resource] = self.own[node].get(resource, 0) - amount * count
            mine[node_place(node), resource] += amount * count


def node_place(node: str) -> Hashable:
    """Key for usage on a node of a domain that has several."""
    return ("node", node)


def leaves_of(
    ground: Ground,
    name: str,
    levels: tuple[str, ...],
    placing: Placing,
    without: Collection[WorkloadKey],
    mine: Mapping[tuple[Hashable, str], int],
    each_node: bool = False,
) -> Leaves:
    """Free resources by domain. `name` is the topology's, empty: every node is a domain. `without`:
    workloads whose usage counts as free; `mine`: usage of the workload's other pod sets;
    `each_node`: each pod has to fit on a node of its domain."""
    leaves = Leaves()
    limited = each_node and name != "" and levels[-1] != HOSTNAME
    wanted = dict(placing.ask.each)
    for resource in placing.ask.leader or ():
        wanted.setdefault(resource, 0)
    for node in ground.nodes.values():
        why = placing.why_not(node, levels)
        if why:
            leaves.excluded[why] += 1
            continue
        values = tuple(node.labels[level] for level in levels) if name else (node.host,)
        free = leaves.free.setdefault(values, dict.fromkeys(wanted, 0))
        others = ground.others_on(node.name)
        own = {}
        for resource in wanted:
            has = node.allocatable.get(resource, 0)
            own[resource] = max(0, has - others.get(resource, 0))
            free[resource] += own[resource]
        if limited and mine:
            for resource in wanted:
                own[resource] -= mine.get((node_place(node.name), resource), 0)
        alone = pods_in(own, placing.ask.each)
        if limited:
            leaves.own[node.name] = own
            leaves.limit(own, alone, values, placing)
        leaves.nodes.setdefault(values, {})[node.name] = alone
    for values, free in leaves.free.items():
        place = place_of(name, levels, values)
        taken = ground.taken(place, without)
        for resource in free:
            free[resource] -= taken.get(resource, 0) + mine.get((place, resource), 0)
    return leaves
