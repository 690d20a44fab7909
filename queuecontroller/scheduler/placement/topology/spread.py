"""Selects the domains that a workload's spreading rules allow, by the number of pod sets of its
service that each domain has already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuecontroller.scheduler.model.objects import (
    Admission,
    PodSet,
    TopologyAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from queuecontroller.scheduler.model.spreading import Spreading, SpreadingRule
from queuecontroller.scheduler.placement.topology.ground import NodeFacts, Values
from queuecontroller.scheduler.placement.topology.leaves import Leaves
from queuecontroller.scheduler.placement.topology.wishes import whole_values

JOB_UID: Final = "kueue.x-k8s.io/job-uid"
FULL: Final = "in domains that have their share"


@dataclass(slots=True)
class Services:
    """Topology assignments of admitted workloads, by namespace."""

    labels_of: Callable[[WorkloadKey], Mapping[str, str]]
    """Labels of a workload."""
    _placed: dict[str, dict[WorkloadKey, Mapping[str, TopologyAssignment]]] = field(
        default_factory=dict
    )
    """Assignments by the pod set's group, or else its name."""
    _namespaces: dict[WorkloadKey, str] = field(default_factory=dict)

    def hold(self, workload: Workload, assigned: Mapping[str, TopologyAssignment]) -> None:
        """Record the assignments of a workload's pod sets, in place of what it had."""
        self.release(workload.key)
        if assigned:
            names = {one.name: _name(one) for one in workload.pod_sets}
            made = {names.get(name, name): given for name, given in assigned.items()}
            self._placed.setdefault(workload.namespace, {})[workload.key] = made
            self._namespaces[workload.key] = workload.namespace

    def release(self, key: WorkloadKey) -> None:
        namespace = self._namespaces.pop(key, None)
        if namespace is not None:
            del self._placed[namespace][key]
            if not self._placed[namespace]:
                del self._placed[namespace]

    def selector(self, workload: Workload, rules: Spreading) -> LabelSelector | None:
        """Selector of the workloads of the same service; None: the workload has no job, so it is
        alone in its service."""
        if rules.selector is not None:
            return rules.selector
        uid = self.labels_of(workload.key).get(JOB_UID)
        return LabelSelector((Requirement(JOB_UID, "In", (uid,)),)) if uid else None

    def counts(
        self,
        workload: Workload,
        pod_set: PodSet,
        levels: tuple[str, ...],
        without: Collection[WorkloadKey],
        hosts: Mapping[str, NodeFacts],
    ) -> tuple[Counter[Values], int]:
        """Number of pod sets of the service in each domain of every level, and in all."""
        assert pod_set.spreading is not None
        selector = self.selector(workload, pod_set.spreading)
        found: Counter[Values] = Counter()
        total = 0
        if selector is None:
            return found, total
        for key, placed in self._placed.get(workload.namespace, {}).items():
            given = placed.get(_name(pod_set))
            if given is None or key in without or not selector.matches(self.labels_of(key)):
                continue
            domains = {
                values[:depth]
                for values, _ in whole_values(given, levels, hosts)
                if len(values) == len(levels)
                for depth in range(1, len(levels) + 1)
            }
            total += bool(domains)
            found.update(domains)
        return found, total


def assignments(admission: Admission) -> dict[str, TopologyAssignment]:
    return {one.name: one.topology for one in admission.pod_sets if one.topology is not None}


def _name(pod_set: PodSet) -> str:
    return pod_set.group or pod_set.name


def leave_out(
    leaves: Leaves,
    rules: Spreading,
    levels: tuple[str, ...],
    counts: Counter[Values],
    total: int,
) -> Iterator[Leaves]:
    """Yield the domains that may be used, from those that the rules prefer to all that they allow.
    A rule for a level that the topology does not have is ignored."""
    known = [one for one in rules.rules if one.level in levels]
    load: dict[Values, int] = {}
    allowed: dict[Values, dict[str, int]] = {}
    for values, free in leaves.free.items():
        over = [one for one in known if _over(one, values, levels, counts, total)]
        if any(one.required for one in over):
            leaves.excluded[FULL] += len(leaves.nodes[values])
            continue
        allowed[values] = free
        load[values] = max(
            (counts[values[: levels.index(one.level) + 1]] for one in over), default=0
        )
    for most in sorted({0, *load.values()}):
        some = {values: free for values, free in allowed.items() if load[values] <= most}
        yield replace(leaves, free=some)


def _over(
    rule: SpreadingRule,
    values: Values,
    levels: tuple[str, ...],
    counts: Counter[Values],
    total: int,
) -> bool:
    return rule.exceeds(counts[values[: levels.index(rule.level) + 1]], total)
