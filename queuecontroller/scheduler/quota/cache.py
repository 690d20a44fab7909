"""All objects that hold or give quota: flavors, ClusterQueues, cohorts and the workloads in them.

Objects may be added and removed in any order, so changes are only recorded, and the cohort trees
they touch are rebuilt on the next `settle`; all others stay as they are. Workloads that start and
end change the built trees in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from queuecontroller.scheduler.model.flavor_resources import FlavorResources, Usage
from queuecontroller.scheduler.model.objects import (
    AdmissionMode,
    ClusterQueue,
    Cohort,
    ResourceFlavor,
    StopPolicy,
    WorkloadKey,
)
from queuecontroller.scheduler.model.settings import PreemptionProtection
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState, set_quotas
from queuecontroller.scheduler.quota.holders import Holders
from queuecontroller.scheduler.quota.tree import QuotaNode, attach, roots, settle, would_cycle
from queuecontroller.scheduler.quota.usage_history import UsageHistory


@dataclass(slots=True)
class Touched:
    """Names of the objects that changed, and of the cohorts they were and are in."""

    flavors: set[str] = field(default_factory=set)
    topologies: set[str] = field(default_factory=set)
    queues: set[str] = field(default_factory=set)
    cohorts: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.flavors or self.topologies or self.queues or self.cohorts)

    def queue(self, name: str, *specs: ClusterQueue | None) -> None:
        self.queues.add(name)
        self.cohorts |= {one.cohort for one in specs if one is not None and one.cohort is not None}

    def cohort(self, *specs: Cohort | None) -> None:
        for one in specs:
            if one is not None:
                self.cohorts.add(one.name)
                if one.parent is not None:
                    self.cohorts.add(one.parent)


class Cache:
    def __init__(self) -> None:
        self.numbers = FlavorResources()
        self.queues: dict[str, ClusterQueueState] = {}
        self.holders = Holders()
        self.set_apart: Mapping[WorkloadKey, WorkloadInfo] = {}
        """Workloads excluded from preemption for the moment, as if they were gone already."""
        self.protection = PreemptionProtection()
        self.protected_until: dict[QuotaNode, int] = {}
        """Time at which the first protected candidate, passed over in a tree, becomes a candidate,
        by root, in ns."""
        self.history: UsageHistory | None = None
        """Usage of LocalQueues, where admission fair sharing is enabled."""
        self._flavors: dict[str, ResourceFlavor] = {}
        self._topologies: dict[str, tuple[str, ...]] = {}
        self._queue_specs: dict[str, ClusterQueue] = {}
        self._cohort_specs: dict[str, Cohort] = {}
        self._in_cycle: set[str] = set()
        self._touched = Touched()

    # -- objects --------------------------------------------------------------------------------

    def put_flavor(self, flavor: ResourceFlavor) -> None:
        if self._flavors.get(flavor.name) != flavor:
            self._flavors[flavor.name] = flavor
            self._touched.flavors.add(flavor.name)

    def put_topology(self, name: str, levels: tuple[str, ...]) -> None:
        if self._topologies.get(name) != levels:
            self._topologies[name] = levels
            self._touched.topologies.add(name)

    def drop_topology(self, name: str) -> None:
        if self._topologies.pop(name, None) is not None:
            self._touched.topologies.add(name)

    def put_cluster_queue(self, spec: ClusterQueue) -> None:
        before = self._queue_specs.get(spec.name)
        if before != spec:
            self._queue_specs[spec.name] = spec
            self._touched.queue(spec.name, before, spec)

    def touch(self, cluster_queue: str) -> None:
        """Record a change of a ClusterQueue that is not in its spec."""
        spec = self._queue_specs.get(cluster_queue)
        if spec is not None:
            self._touched.queue(cluster_queue, spec)

    def put_cohort(self, spec: Cohort) -> None:
        before = self._cohort_specs.get(spec.name)
        if before != spec:
            self._cohort_specs[spec.name] = spec
            self._touched.cohort(before, spec)

    def drop_flavor(self, name: str) -> None:
        if self._flavors.pop(name, None) is not None:
            self._touched.flavors.add(name)

    def drop_cluster_queue(self, name: str) -> None:
        before = self._queue_specs.pop(name, None)
        if before is not None:
            self._touched.queue(name, before)

    def drop_cohort(self, name: str) -> None:
        before = self._cohort_specs.pop(name, None)
        if before is not None:
            self._touched.cohort(before)

    @property
    def flavors(self) -> Mapping[str, ResourceFlavor]:
        return self._flavors

    @property
    def topologies(self) -> Mapping[str, tuple[str, ...]]:
        """Levels of each topology, the widest first."""
        return self._topologies

    # -- the trees ------------------------------------------------------------------------------

    def settle(self) -> frozenset[str]:
        """Rebuild the trees that changed objects touch. Returns the names of the ClusterQueues in
        them, and of those that were removed."""
        if not self._touched:
            return frozenset()
        names, cohort_names = self._reach()
        before = self.queues
        tops = [queue.node.root for queue in before.values()]
        generation = 1 + max((top.generation for top in tops), default=0)
        freed = 1 + max((top.freed for top in tops), default=0)
        self.queues = {
            name: ClusterQueueState(spec, self._flavors, self._topologies, self.numbers)
            if name in names
            else before[name]
            for name, spec in self._queue_specs.items()
        }
        made = [queue for name, queue in self.queues.items() if name in names]
        cohorts = self._cohort_nodes(cohort_names)
        for queue in made:
            if queue.spec.cohort is not None:
                attach(queue.node, cohorts[queue.spec.cohort])
            old = before.get(queue.name)
            if old is not None:
                queue.workloads = old.workloads
        held = {queue.name: _total(queue) for queue in made}
        for root in roots([*cohorts.values(), *(queue.node for queue in made)]):
            settle(root, held)
            root.generation, root.freed = generation, freed
        for name in names & before.keys():
            self.holders.drop(before[name].node)
        for queue in made:
            for info in queue.workloads.values():
                self.holders.add(queue.node, info)
        self._touched = Touched()
        return frozenset(names)

    def _reach(self) -> tuple[set[str], set[str]]:
        """The ClusterQueues and the cohorts of all touched trees, both as connected before and as
        connected now."""
        touched = self._touched
        flavors = touched.flavors | {
            one.name for one in self._flavors.values() if one.topology_name in touched.topologies
        }
        names = set(touched.queues)
        for spec in self._queue_specs.values() if flavors else ():
            if any(
                one.flavor in flavors for group in spec.resource_groups for one in group.flavors
            ):
                names.add(spec.name)
        seeds = set(touched.cohorts)
        for name in names:
            found = self._queue_specs.get(name)
            if found is not None and found.cohort is not None:
                seeds.add(found.cohort)
        links: dict[str, list[str]] = {}
        for one in self._cohort_specs.values():
            if one.parent is not None:
                links.setdefault(one.name, []).append(one.parent)
                links.setdefault(one.parent, []).append(one.name)
        cohorts: set[str] = set()
        while seeds:
            cohort = seeds.pop()
            cohorts.add(cohort)
            seeds.update(near for near in links.get(cohort, ()) if near not in cohorts)
        names |= {spec.name for spec in self._queue_specs.values() if spec.cohort in cohorts}
        return names, cohorts

    def _cohort_nodes(self, among: set[str]) -> dict[str, QuotaNode]:
        """A node for each of these cohorts that is defined or referenced."""
        specs = {name: spec for name, spec in self._cohort_specs.items() if name in among}
        names = dict.fromkeys(specs)
        names.update(dict.fromkeys(one.parent for one in specs.values() if one.parent))
        named = (spec.cohort for spec in self._queue_specs.values())
        names.update(dict.fromkeys(name for name in named if name in among))
        nodes: dict[str, QuotaNode] = {}
        for name in names:
            spec = specs.get(name, Cohort(name))
            node = QuotaNode(name, is_cohort=True, fair_weight_milli=spec.fair_weight_milli)
            set_quotas(node, spec, self.numbers)
            nodes[name] = node
        self._in_cycle -= among
        for spec in specs.values():
            if spec.parent is None:
                continue
            child, parent = nodes[spec.name], nodes[spec.parent]
            if would_cycle(child, parent):
                self._in_cycle.add(spec.name)
            else:
                attach(child, parent)
        return nodes

    def why_inactive(self, name: str) -> str | None:
        """Reason why this ClusterQueue admits nothing at all, else None."""
        queue = self.queues.get(name)
        if queue is None:
            return f"ClusterQueue {name} doesn't exist"
        missing = queue.missing_flavors()
        inactive = f"ClusterQueue {name} is inactive"
        if missing:
            return f"{inactive}: it names flavors that don't exist: {', '.join(missing)}"
        if lost := queue.missing_topologies():
            return f"{inactive}: topologies of its flavors don't exist: {', '.join(lost)}"
        if queue.spec.stop_policy is not StopPolicy.NONE:
            return f"{inactive}: it is stopped ({queue.spec.stop_policy})"
        for node in queue.node.root.subtree() if self._in_cycle else ():
            if node.name in self._in_cycle:
                return f"Cohort {node.name} is its own ancestor"
        return None

    # -- admission fair sharing -------------------------------------------------------------------

    def is_by_usage(self, queue: ClusterQueueState) -> bool:
        """True if its LocalQueues are ordered by their recorded usage."""
        return self.history is not None and queue.spec.admission_mode is AdmissionMode.BY_USAGE

    def scope_of(self, queue: ClusterQueueState) -> QuotaNode | None:
        """The topmost cohort over it whose borrowers are ordered by their recorded usage."""
        if self.history is None:
            return None
        for cohort in reversed(queue.node.path[1:]):
            spec = self._cohort_specs.get(cohort.name)
            if spec is not None and spec.admission_mode is AdmissionMode.BY_USAGE:
                return cohort
        return None

    def queue_has_used(self, queue: ClusterQueueState) -> int:
        """The figure of a ClusterQueue: all of its LocalQueues together over its own weight."""
        if self.history is None:
            return 0
        return self.history.figure_of(queue.name, queue.spec.fair_weight_milli)

    def has_used(self, info: WorkloadInfo) -> int:
        """The figure of its LocalQueue, to be compared within its ClusterQueue; 0 where usage does
        not order that."""
        if self.history is None:
            return 0
        queue = self.queues[info.cluster_queue]
        return self.history.figure(info.workload.local_queue) if self.is_by_usage(queue) else 0

    # -- workloads with quota ---------------------------------------------------------------------

    def add_workload(self, info: WorkloadInfo) -> None:
        queue = self.queues[info.cluster_queue]
        queue.workloads[info.key] = info
        queue.node.add_usage(info.usage)
        self.holders.add(queue.node, info)
        queue.node.root.generation += 1

    def remove_workload(self, info: WorkloadInfo) -> None:
        """Release its quota, so that every queue of the tree may be evaluated again."""
        queue = self.queues[info.cluster_queue]
        if queue.workloads.pop(info.key, None) is None:
            return
        queue.node.remove_usage(info.usage)
        root = queue.node.root
        self.holders.remove(queue.node, info)
        root.generation += 1
        root.freed += 1

    def mark_evicted(self, info: WorkloadInfo) -> None:
        """Mark as evicted: it holds its quota until it has stopped, but is the first candidate."""
        node = self.queues[info.cluster_queue].node
        self.holders.remove(node, info)
        info.evicted = True
        self.holders.add(node, info)
        node.root.generation += 1


def _total(queue: ClusterQueueState) -> Usage:
    total = QuotaNode(queue.name, is_cohort=False)
    for info in queue.workloads.values():
        total.add_usage(info.usage)
    return total.usage
