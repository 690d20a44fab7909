"""Units of reconciliation: a job, a single pod, a group of pods, or a LeaderWorkerSet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from queuecontroller.cluster.cache.job_context import KINDS, SETS, kind_of
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    annotations_of,
    controller_of,
    key_of,
    labels_of,
)
from queuecontroller.frameworks import group_of
from queuecontroller.frameworks.names import IS_GROUP, SUSPENDING_PARENT
from queuecontroller.frameworks.serving import SET, SET_NAME
from sluicecommon.kubernetes.resources import PODS, Resource


class UnitKind(StrEnum):
    """Kind of a unit; each has one reconciler."""

    JOB = "job"
    POD = "pod"
    GROUP = "pod group"
    """Pods that name the same group. The group's Workload has its name."""
    SET = "LeaderWorkerSet"
    PLACED = "placed pods"
    """Pods of one Workload that go to the topology domains it was assigned."""
    MISSED = "pod without its gate"
    """A pod that names a queue and was created while no replica answered the webhook."""
    OWNER = "template without its queue"
    """A Deployment, StatefulSet or LeaderWorkerSet that was created while no replica answered."""
    WORKLOAD = "Workload"
    """A Workload without an owner that is known here."""


class Unit(NamedTuple):
    """One item of the reconcilers' work queue."""

    kind: UnitKind
    resource: Resource
    """Kind of the object with this key; Pod for the two kinds of unit that are several pods."""
    key: str
    """Namespace and name: of the object, of the group, or of the placed pods' Workload."""

    @property
    def reference(self) -> tuple[Resource, str]:
        """The unit's object, as the cache names it."""
        return self.resource, self.key


_KIND_OF: Final = {PODS: UnitKind.POD, SETS: UnitKind.SET, WORKLOADS: UnitKind.WORKLOAD}


def unit_of(resource: Resource, key: str) -> Unit:
    """The unit that consists of one object: a pod, a LeaderWorkerSet, a Workload, else a job."""
    return Unit(_KIND_OF.get(resource, UnitKind.JOB), resource, key)


def group_unit(key: str) -> Unit:
    """The unit of a group of pods."""
    return Unit(UnitKind.GROUP, PODS, key)


def placed_unit(key: str) -> Unit:
    """The unit of a Workload's pods that are placed by topology."""
    return Unit(UnitKind.PLACED, PODS, key)


def missed_unit(key: str) -> Unit:
    """The unit of a pod that may have missed the webhook."""
    return Unit(UnitKind.MISSED, PODS, key)


def owner_unit(kind: Resource, key: str) -> Unit:
    """The unit of an owner whose pods are queued, and which may have missed the webhook."""
    return Unit(UnitKind.OWNER, kind, key)


def of_pod(pod: Document) -> Unit:
    """Return the unit that a pod belongs to."""
    namespace = pod["metadata"]["namespace"]
    if group := group_of(pod):
        return group_unit(f"{namespace}/{group}")
    name = labels_of(pod).get(SET_NAME)
    if name and annotations_of(pod).get(SUSPENDING_PARENT) == SET.name:
        return unit_of(SETS, f"{namespace}/{name}")  # The set's reconciler gives the pod its group.
    return unit_of(PODS, key_of(pod))


def of_workload(workload: Document) -> Unit | None:
    """Return the unit that a Workload belongs to; None if its owner is not known here."""
    if annotations_of(workload).get(IS_GROUP) == "true" or any(
        one.get("kind") == "Pod" and not one.get("controller") for one in owners_of(workload)
    ):
        return group_unit(key_of(workload))
    owner = controller_of(workload)
    kind = kind_of(owner)
    if kind is None or (kind not in KINDS and kind != PODS):
        return None
    return unit_of(kind, f"{workload['metadata']['namespace']}/{owner.get('name')}")


def set_of(workload: Document) -> Unit | None:
    """Return the LeaderWorkerSet that a group's Workload was created for."""
    for one in owners_of(workload):
        if one.get("kind") == SETS.kind and kind_of(one) == SETS:
            return unit_of(SETS, f"{workload['metadata']['namespace']}/{one.get('name')}")
    return None


def owners_of(document: Document) -> Iterator[Mapping[str, Any]]:
    yield from document["metadata"].get("ownerReferences") or ()
