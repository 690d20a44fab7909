"""Pods and their owners as the API server sends them: of each only what the node needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.ports.kubelet import ContainerRequests, Owner, OwnerRef, PodIdentity
from nodeagent.units import PodUid

MIRRORED: Final = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod: the UID the kubelet itself knows it by."""
OVER: Final = frozenset({"Succeeded", "Failed"})

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PodFacts:
    uid: PodUid
    """As the kubelet's records have it."""
    api_uid: str
    """As the API server has it; another one for static pods."""
    namespace: str
    name: str
    containers: tuple[tuple[str, Pairs], ...]
    """Resources by name, of init containers too."""
    labels: Pairs = ()
    annotations: Pairs = ()
    owner: OwnerRef | None = None
    is_over: bool = False
    """It will never run again."""

    def requests(self, container: str) -> ContainerRequests | None:
        """None: it has no such container."""
        for name, resources in self.containers:
            if name == container:
                pod = PodIdentity(self.uid, self.namespace, self.name)
                return ContainerRequests(pod, resources, self.labels, self.annotations, self.owner)
        return None


def read_pod(document: Mapping[str, Any]) -> PodFacts:
    """Raises KeyError, TypeError, AttributeError for another form."""
    head, spec = document["metadata"], document["spec"]
    annotations = head.get("annotations") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return PodFacts(
        PodUid(annotations.get(MIRRORED) or head["uid"]),
        head["uid"],
        head["namespace"],
        head["name"],
        tuple((one["name"], _amounts(one.get("resources") or {})) for one in containers),
        _pairs(head.get("labels")),
        _pairs(annotations),
        controller_of(head),
        (document.get("status") or {}).get("phase") in OVER,
    )


def controller_of(head: Mapping[str, Any]) -> OwnerRef | None:
    """Out of an object's metadata; an owner that is not its controller made nothing of it."""
    for one in head.get("ownerReferences") or ():
        if one.get("controller") is True:
            return OwnerRef(one["apiVersion"], one["kind"], one["name"], one["uid"])
    return None


def read_owner(ref: OwnerRef, document: Mapping[str, Any]) -> tuple[Owner, OwnerRef | None]:
    """And its own controller."""
    head = document["metadata"]
    return Owner(ref, _pairs(head.get("labels"))), controller_of(head)


def _amounts(resources: Mapping[str, Any]) -> Pairs:
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return tuple(sorted((str(name), str(amount)) for name, amount in asked.items()))


def _pairs(table: Any) -> Pairs:
    return tuple(sorted((str(key), str(value)) for key, value in (table or {}).items()))
