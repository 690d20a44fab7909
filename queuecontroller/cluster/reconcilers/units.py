"""What is tended as one: a job, a pod that is alone, a group of pods, or a set of such groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from queuecontroller.cluster.cache.job_context import KINDS, SETS, kind_of
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

GROUPS: Final = Resource("", "v1", "", "pod group")
"""Of no object: of pods that name the same group. Its Workload has the group's name."""


PLACED: Final = Resource("", "v1", "", "placed pods")
"""Pods of a Workload, whose name it has, that go to the domains it was given."""


class Unit(NamedTuple):
    kind: Resource
    key: str
    """Namespace and name."""


def of_pod(pod: Document) -> Unit:
    namespace = pod["metadata"]["namespace"]
    if group := group_of(pod):
        return Unit(GROUPS, f"{namespace}/{group}")
    name = labels_of(pod).get(SET_NAME)
    if name and annotations_of(pod).get(SUSPENDING_PARENT) == SET.name:
        return Unit(SETS, f"{namespace}/{name}")  # which will tell it its group
    return Unit(PODS, key_of(pod))


def of_workload(workload: Document) -> Unit | None:
    """None: of nobody that we know."""
    if annotations_of(workload).get(IS_GROUP) == "true" or any(
        one.get("kind") == "Pod" and not one.get("controller") for one in owners_of(workload)
    ):
        return Unit(GROUPS, key_of(workload))
    owner = controller_of(workload)
    kind = kind_of(owner)
    if kind is None or (kind not in KINDS and kind != PODS):
        return None
    return Unit(kind, f"{workload['metadata']['namespace']}/{owner.get('name')}")


def set_of(workload: Document) -> Unit | None:
    """The LeaderWorkerSet that a group's Workload was made for."""
    for one in owners_of(workload):
        if one.get("kind") == SETS.kind and kind_of(one) == SETS:
            return Unit(SETS, f"{workload['metadata']['namespace']}/{one.get('name')}")
    return None


def owners_of(document: Document) -> Iterator[Mapping[str, Any]]:
    yield from document["metadata"].get("ownerReferences") or ()
