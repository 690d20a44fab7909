"""Runtime state of a ClusterQueue: its node in the cohort tree, its flavors by group, and its
workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from queuecontroller.scheduler.model.flavor_resources import FlavorResources, Fr
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    Cohort,
    ResourceFlavor,
    ResourceGroup,
    WorkloadKey,
)
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.tree import QuotaNode


class FlavorChoice:
    """One flavor of a resource group."""

    __slots__ = ("flavor", "frs", "label_keys", "name", "open_to_all")

    def __init__(
        self,
        name: str,
        flavor: ResourceFlavor | None,
        frs: Mapping[str, Fr],
        topology_levels: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.flavor = flavor
        self.frs = frs
        """Numbers of the resources the flavor has quota for."""
        self.label_keys: frozenset[str] = frozenset()
        self.open_to_all = False
        """True without labels, taints and a topology: every pod set matches, so no check is needed.
        """
        if flavor is not None:
            self.label_keys = frozenset(flavor.node_labels) | frozenset(topology_levels)
            self.open_to_all = not (
                flavor.node_labels or flavor.node_taints or flavor.topology_name
            )


class GroupChoices:
    __slots__ = ("covered", "flavors")

    def __init__(self, covered: frozenset[str], flavors: tuple[FlavorChoice, ...]) -> None:
        self.covered = covered
        self.flavors = flavors


class ClusterQueueState:
    __slots__ = (
        "group_of",
        "groups",
        "node",
        "only_topology",
        "spec",
        "topologies",
        "workloads",
    )

    def __init__(
        self,
        spec: ClusterQueue,
        flavors: Mapping[str, ResourceFlavor],
        topologies: Mapping[str, tuple[str, ...]],
        numbers: FlavorResources,
    ) -> None:
        self.spec = spec
        self.node = QuotaNode(spec.name, is_cohort=False, fair_weight_milli=spec.fair_weight_milli)
        set_quotas(self.node, spec, numbers)
        self.topologies = topologies
        self.groups = tuple(
            _choices(group, flavors, topologies, numbers) for group in spec.resource_groups
        )
        self.group_of: dict[str, GroupChoices] = {}
        for group in self.groups:
            for resource in group.covered:
                self.group_of.setdefault(resource, group)
        self.workloads: dict[WorkloadKey, WorkloadInfo] = {}
        every = [choice.flavor for group in self.groups for choice in group.flavors]
        self.only_topology = bool(every) and all(
            flavor is not None and flavor.topology_name is not None for flavor in every
        )

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def freed(self) -> int:
        """Counter that grows when quota may be free; remembered flavors are then dropped."""
        return self.node.path[-1].freed

    def missing_topologies(self) -> list[str]:
        """Topologies of its flavors that are missing; a ClusterQueue with any is inactive."""
        found = (choice.flavor for group in self.groups for choice in group.flavors)
        names = {one.topology_name for one in found if one is not None and one.topology_name}
        return sorted(names - self.topologies.keys())

    def missing_flavors(self) -> list[str]:
        """Flavors that are referenced but missing; a ClusterQueue with any is inactive."""
        return sorted(
            {
                choice.name
                for group in self.groups
                for choice in group.flavors
                if choice.flavor is None
            }
        )


def set_quotas(node: QuotaNode, spec: ClusterQueue | Cohort, numbers: FlavorResources) -> None:
    for group in spec.resource_groups:
        for quotas in group.flavors:
            for one in quotas.resources:
                node.set_quota(
                    numbers.number(quotas.flavor, one.resource),
                    one.nominal,
                    one.borrowing_limit,
                    one.lending_limit,
                )


def _choices(
    group: ResourceGroup,
    flavors: Mapping[str, ResourceFlavor],
    topologies: Mapping[str, tuple[str, ...]],
    numbers: FlavorResources,
) -> GroupChoices:
    choices = []
    for quotas in group.flavors:
        flavor = flavors.get(quotas.flavor)
        levels = topologies.get(flavor.topology_name or "", ()) if flavor else ()
        frs = {q.resource: numbers.number(quotas.flavor, q.resource) for q in quotas.resources}
        choices.append(FlavorChoice(quotas.flavor, flavor, frs, levels))
    covered = frozenset(group.covered_resources)
    if not covered:  # v1alpha2 had none: the quotas themselves say what is covered
        covered = frozenset(r.resource for one in group.flavors for r in one.resources)
    return GroupChoices(covered, tuple(choices))
