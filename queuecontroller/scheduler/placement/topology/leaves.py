"""Free resources for the pods of one pod set, by the lowest domains of a topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.topology.choose import pods_in
from queuecontroller.scheduler.placement.topology.ground import Ground, Values, place_of
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

    def left_out(self, each: Mapping[str, int]) -> list[str]:
        """Texts for the excluded nodes, and for those where not one pod fits."""
        lacking: Counter[str] = Counter()
        for free in self.free.values():
            for resource, amount in each.items():
                if not pods_in(free, {resource: amount}):
                    lacking[resource] += 1
                    break
        parts = [f"{count} {why}" for why, count in sorted(self.excluded.items())]
        return parts + [f"{count} without {name} for a pod" for name, count in lacking.items()]


def leaves_of(
    ground: Ground,
    name: str,
    levels: tuple[str, ...],
    placing: Placing,
    without: Collection[WorkloadKey],
    mine: Mapping[tuple[Hashable, str], int],
) -> Leaves:
    """Free resources by domain. `name` is the topology's, empty: every node is a domain. `without`:
    workloads whose usage counts as free; `mine`: usage of the workload's other pod sets."""
    leaves = Leaves()
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
        leaves.nodes.setdefault(values, {})[node.name] = pods_in(own, placing.ask.each)
    for values, free in leaves.free.items():
        place = place_of(name, levels, values)
        taken = ground.taken(place, without)
        for resource in free:
            free[resource] -= taken.get(resource, 0) + mine.get((place, resource), 0)
    return leaves
