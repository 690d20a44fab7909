"""Readers of Kueue's objects except Workload, in any of its API versions.

Of a name that changed between versions both forms are read: `cohort` became `cohortName`, the
fungibility values Borrow and Preempt became MayStopSearch. The table (kueueapi/table.py) lists the
fields, so that a misspelt one is found even where the field decides nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from queuecontroller.kueueapi.manifests.checking import read_kind
from queuecontroller.kueueapi.manifests.pods import (
    read_requirements,
    read_taints,
    read_tolerations,
)
from queuecontroller.scheduler.model.limit_range import Bounds, LimitRange
from queuecontroller.scheduler.model.objects import (
    DEFAULT_WEIGHT_MILLI,
    AdmissionCheckRule,
    AdmissionMode,
    BorrowWithinCohort,
    ClusterQueue,
    ClusterQueuePreemption,
    Cohort,
    FlavorFungibility,
    FlavorQuotas,
    FungibilityPolicy,
    FungibilityPreference,
    LocalQueue,
    PreemptionPolicy,
    QueueingStrategy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    StopPolicy,
)
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from sluicecommon.reader import Reader, read

_OLD_FUNGIBILITY: Final = MappingProxyType(
    {
        "Borrow": FungibilityPolicy.MAY_STOP_SEARCH,
        "Preempt": FungibilityPolicy.MAY_STOP_SEARCH,
    }
)
_NONE: Final[Mapping[str, PreemptionPolicy]] = MappingProxyType({})


def read_flavor(value: object, path: str = "ResourceFlavor") -> ResourceFlavor:
    return read_kind(_flavor, "ResourceFlavor", value, path)


def read_cluster_queue(value: object, path: str = "ClusterQueue") -> ClusterQueue:
    return read_kind(_cluster_queue, "ClusterQueue", value, path)


def read_cohort(value: object, path: str = "Cohort") -> Cohort:
    return read_kind(_cohort, "Cohort", value, path)


def read_local_queue(value: object, path: str = "LocalQueue") -> LocalQueue:
    return read_kind(_local_queue, "LocalQueue", value, path)


def read_limit_range(value: object, path: str = "LimitRange") -> tuple[str, LimitRange]:
    """Namespace and bounds of a LimitRange."""
    return read(_limit_range, value, path)


def read_topology_levels(value: object, path: str = "Topology") -> tuple[str, tuple[str, ...]]:
    """Name and the node labels of the levels, widest first."""
    return read_kind(_topology, "Topology", value, path)


def _head(reader: Reader) -> Reader:
    """A reader of an object's metadata; the caller reads the fields it needs."""
    return reader.child("metadata")


def _flavor(reader: Reader) -> ResourceFlavor:
    name = _head(reader).required("name")
    spec = reader.child("spec")
    return ResourceFlavor(
        name=name,
        node_labels=spec.labels("nodeLabels"),
        node_taints=read_taints(spec, "nodeTaints"),
        tolerations=read_tolerations(spec, "tolerations"),
        topology_name=spec.optional_text("topologyName"),
    )


def _weight_milli(spec: Reader) -> int:
    sharing = spec.child("fairSharing")
    weight = sharing.amount("weight", "cpu")  # thousandths, as CPU is counted
    return DEFAULT_WEIGHT_MILLI if weight is None else weight


def _admission_mode(spec: Reader) -> AdmissionMode:
    """The mode in `admissionScope`; without that field, recorded usage does not count."""
    if not spec.has("admissionScope"):
        return AdmissionMode.NONE
    scope = spec.child("admissionScope")
    scope.required("admissionMode")
    return scope.choice("admissionMode", AdmissionMode, AdmissionMode.NONE, {})


def _resource_groups(spec: Reader) -> tuple[ResourceGroup, ...]:
    groups = []
    for group in spec.children("resourceGroups"):
        flavors = []
        for flavor in group.children("flavors"):
            quotas = tuple(_quota(one) for one in flavor.children("resources"))
            flavors.append(FlavorQuotas(flavor.required("name"), quotas))
        groups.append(ResourceGroup(group.texts("coveredResources"), tuple(flavors)))
    return tuple(groups)


def _quota(reader: Reader) -> ResourceQuota:
    name = reader.required("name")
    auto = reader.raw("nominalQuota") == "auto"  # ours: Kueue has numbers only
    return ResourceQuota(
        resource=name,
        nominal=0 if auto else reader.amount("nominalQuota", name) or 0,
        auto=auto,
        borrowing_limit=reader.amount("borrowingLimit", name),
        lending_limit=reader.amount("lendingLimit", name),
    )


def read_selector(spec: Reader, key: str) -> LabelSelector | None:
    if not spec.has(key):
        return None
    reader = spec.child(key)
    exact = tuple(
        Requirement(name, "In", (wanted,)) for name, wanted in reader.labels("matchLabels").items()
    )
    return LabelSelector(exact + read_requirements(reader, "matchExpressions"))


def _preemption(spec: Reader) -> ClusterQueuePreemption:
    reader = spec.child("preemption")
    borrow = reader.child("borrowWithinCohort")
    never = PreemptionPolicy.NEVER
    return ClusterQueuePreemption(
        within_cluster_queue=reader.choice("withinClusterQueue", PreemptionPolicy, never, _NONE),
        reclaim_within_cohort=reader.choice("reclaimWithinCohort", PreemptionPolicy, never, _NONE),
        borrow_within_cohort=BorrowWithinCohort(
            borrow.choice("policy", PreemptionPolicy, never, _NONE),
            borrow.optional_whole("maxPriorityThreshold"),
        ),
    )


def _fungibility(spec: Reader) -> FlavorFungibility:
    reader = spec.child("flavorFungibility")
    stop, go_on = FungibilityPolicy.MAY_STOP_SEARCH, FungibilityPolicy.TRY_NEXT_FLAVOR
    return FlavorFungibility(
        reader.choice("whenCanBorrow", FungibilityPolicy, stop, _OLD_FUNGIBILITY),
        reader.choice("whenCanPreempt", FungibilityPolicy, go_on, _OLD_FUNGIBILITY),
        reader.choice(
            "preference",
            FungibilityPreference,
            FungibilityPreference.BORROWING_OVER_PREEMPTION,
            {},
        ),
    )


def _admission_checks(spec: Reader) -> tuple[AdmissionCheckRule, ...]:
    rules = [AdmissionCheckRule(name) for name in spec.texts("admissionChecks")]
    strategy = spec.child("admissionChecksStrategy")
    for one in strategy.children("admissionChecks"):
        rules.append(AdmissionCheckRule(one.required("name"), one.texts("onFlavors")))
    return tuple(rules)


def _cluster_queue(reader: Reader) -> ClusterQueue:
    name = _head(reader).required("name")
    spec = reader.child("spec")
    return ClusterQueue(
        name=name,
        cohort=spec.optional_text("cohortName") or spec.optional_text("cohort"),
        resource_groups=_resource_groups(spec),
        queueing_strategy=spec.choice(
            "queueingStrategy", QueueingStrategy, QueueingStrategy.BEST_EFFORT_FIFO, {}
        ),
        namespace_selector=read_selector(spec, "namespaceSelector"),
        flavor_fungibility=_fungibility(spec),
        preemption=_preemption(spec),
        stop_policy=spec.choice("stopPolicy", StopPolicy, StopPolicy.NONE, {}),
        admission_checks=_admission_checks(spec),
        fair_weight_milli=_weight_milli(spec),
        admission_mode=_admission_mode(spec),
    )


def _cohort(reader: Reader) -> Cohort:
    name = _head(reader).required("name")
    spec = reader.child("spec")
    return Cohort(
        name=name,
        parent=spec.optional_text("parentName") or spec.optional_text("parent"),
        resource_groups=_resource_groups(spec),
        fair_weight_milli=_weight_milli(spec),
        admission_mode=_admission_mode(spec),
    )


def _local_queue(reader: Reader) -> LocalQueue:
    head = _head(reader)
    spec = reader.child("spec")
    return LocalQueue(
        namespace=head.text("namespace", "default"),
        name=head.required("name"),
        cluster_queue=spec.required("clusterQueue"),
        stop_policy=spec.choice("stopPolicy", StopPolicy, StopPolicy.NONE, {}),
        fair_weight_milli=_weight_milli(spec),
    )


def _topology(reader: Reader) -> tuple[str, tuple[str, ...]]:
    name = _head(reader).required("name")
    spec = reader.child("spec")
    levels = []
    for level in spec.children("levels"):
        levels.append(level.required("nodeLabel"))
    return name, tuple(levels)


def _limit_range(reader: Reader) -> tuple[str, LimitRange]:
    reader.ignore("apiVersion", "kind", "status")
    head = _head(reader)
    spec = reader.child("spec")
    bounds = []
    for one in spec.children("limits"):
        bounds.append(
            Bounds(
                one.required("type"),
                one.amounts("min"),
                one.amounts("max"),
                one.amounts("default"),
                one.amounts("defaultRequest"),
            )
        )
    spec.done()
    return head.text("namespace", "default"), LimitRange(tuple(bounds))
