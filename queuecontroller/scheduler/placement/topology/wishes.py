"""Topology requests of pod sets, and their assignments, in the scheduler's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from queuecontroller.scheduler.model.objects import (
    PodSet,
    ResourceFlavor,
    TopologyAssignment,
    Workload,
)
from queuecontroller.scheduler.model.selectors import holds, untolerated
from queuecontroller.scheduler.model.settings import TopologySettings
from queuecontroller.scheduler.placement.topology.choose import Ask, Layer
from queuecontroller.scheduler.placement.topology.ground import HOSTNAME, Amounts, NodeFacts


@dataclass(frozen=True, slots=True)
class Placing:
    """Placement request of one pod set, or of one with its leader, with all requirements on its
    nodes."""

    ask: Ask
    pod_sets: tuple[PodSet, ...]
    flavor: ResourceFlavor

    def why_not(self, node: NodeFacts, levels: tuple[str, ...]) -> str:
        """Short reason why its pods may not use the node; empty: they may."""
        labels = node.labels
        if any(labels.get(key) != value for key, value in self.flavor.node_labels.items()):
            return "not of the flavor"
        if self.flavor.topology_name and not all(labels.get(level) for level in levels):
            return "without the topology's labels"
        if not node.ready:
            return "not ready or cordoned"
        for pod_set in self.pod_sets:
            tolerations = pod_set.tolerations + self.flavor.tolerations
            taint = untolerated(node.taints, tolerations)
            if taint is not None:
                return f"tainted {taint.key}"
            if any(labels.get(key) != value for key, value in pod_set.node_selector.items()):
                return "not of its node selector"
            terms = pod_set.affinity
            if terms is not None and not any(
                term.expressions and all(holds(one, labels) for one in term.expressions)
                for term in terms
            ):
                return "not of its node affinity"
        return ""


@dataclass(frozen=True, slots=True)
class GivenPods:
    name: str
    count: int
    flavors: Mapping[str, str]


def placings(
    workload: Workload,
    given: Sequence[GivenPods],
    flavors: Mapping[str, ResourceFlavor],
    settings: TopologySettings,
    each: Callable[[PodSet], Amounts],
    apart: Callable[[PodSet], Amounts],
    wants: Callable[[str], bool] = lambda _: False,
) -> Iterator[Placing]:
    """Placement requests in the order of the workload's pod sets, a leader with its workers.
    `each`: resources that one pod takes of a node; `wants`: True if a pod set must be placed though
    it has no topology, and then a pod takes those of `apart`."""
    sets = {one.name: one for one in workload.pod_sets}
    done: set[str] = set()
    for one in given:
        flavor = topology_flavor(one.flavors, flavors)
        if one.name in done or one.name not in sets:
            continue
        if flavor is None:
            if wants(one.name):
                ask = Ask(one.name, one.count, apart(sets[one.name]))
                yield Placing(ask, (sets[one.name],), _together(one.flavors, flavors))
            continue
        mates = [one]
        group = sets[one.name].group
        if group is not None:
            mates = [mate for mate in given if mate.name in sets and sets[mate.name].group == group]
        done.update(mate.name for mate in mates)
        leader = None
        if len(mates) == 2:
            few, many = sorted(mates, key=lambda mate: mate.count)
            if few.count == 1:
                leader, mates = few, [many]
        for mate in mates:
            mine = (mate, leader) if leader is not None else (mate,)
            ask = _ask(sets, mate, leader, settings, each)
            yield Placing(ask, tuple(sets[member.name] for member in mine), flavor)


def _together(given: Mapping[str, str], flavors: Mapping[str, ResourceFlavor]) -> ResourceFlavor:
    """Requirements on a node by all flavors of a pod set."""
    mine = [flavors[name] for name in dict.fromkeys(given.values()) if name in flavors]
    return ResourceFlavor(
        "",
        node_labels={key: value for one in mine for key, value in one.node_labels.items()},
        tolerations=tuple(one for flavor in mine for one in flavor.tolerations),
    )


def topology_flavor(
    given: Mapping[str, str], flavors: Mapping[str, ResourceFlavor]
) -> ResourceFlavor | None:
    """The pod set's flavor that has a topology; None: it is not placed by one."""
    for name in given.values():
        flavor = flavors.get(name)
        if flavor is not None and flavor.topology_name:
            return flavor
    return None


def _ask(
    sets: Mapping[str, PodSet],
    given: GivenPods,
    leader: GivenPods | None,
    settings: TopologySettings,
    each: Callable[[PodSet], Amounts],
) -> Ask:
    pod_set = sets[given.name]
    layers = []
    if pod_set.slice_topology:
        layers.append(Layer(pod_set.slice_topology, pod_set.slice_size or given.count or 1))
    layers += [Layer(level, size) for level, size in pod_set.slice_layers]
    return Ask(
        name=pod_set.name,
        count=given.count,
        each=each(pod_set),
        required=pod_set.required_topology,
        preferred=pod_set.preferred_topology,
        layers=tuple(layers),
        leader=each(sets[leader.name]) if leader is not None else None,
        leader_name=leader.name if leader is not None else "",
        balanced=settings.balanced,
        partial=settings.partial_slices,
    )


def assignment_of(
    levels: tuple[str, ...], domains: Sequence[tuple[tuple[str, ...], int]]
) -> TopologyAssignment:
    """The assignment as Kueue stores it: where the lowest level is the host name, the other levels
    are left out."""
    if levels[-1] == HOSTNAME:
        return TopologyAssignment(
            (HOSTNAME,), tuple(((values[-1],), count) for values, count in domains)
        )
    return TopologyAssignment(levels, tuple(domains))


def whole_values(
    given: TopologyAssignment, levels: tuple[str, ...], hosts: Mapping[str, NodeFacts]
) -> list[tuple[tuple[str, ...], int]]:
    """The domains of an assignment with the values of all levels; of a removed node only its name
    is known."""
    found = []
    for values, count in given.domains:
        if given.levels == (HOSTNAME,) and levels[-1] == HOSTNAME:
            node = hosts.get(values[0])
            labels = node.labels if node is not None else {}
            found.append((tuple(labels.get(level, "") for level in levels[:-1]) + values, count))
        else:
            found.append((values, count))
    return found
