"""Reads pods and their owners as the API server sends them, limited to what the node needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.ports.kubelet import ContainerRequests, Owner, OwnerRef, PodIdentity
from nodeagent.units import PodUid

MIRRORED: Final = "kubernetes.io/config.mirror"
"""Annotation on the API server's copy of a static pod, with the UID that the kubelet uses for
it."""
OVER: Final = frozenset({"Succeeded", "Failed"})

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PodFacts:
    uid: PodUid
    """UID in the kubelet's records."""
    api_uid: str
    """UID in the API server; it differs for static pods."""
    namespace: str
    name: str
    containers: tuple[tuple[str, Pairs], ...]
    """Resources by container, init containers first."""
    labels: Pairs = ()
    annotations: Pairs = ()
    owner: OwnerRef | None = None
    subdomain: str = ""
    is_over: bool = False
    """True if it will never run again."""
    is_admitted: bool = False
    """True once the kubelet has reported it: it has its devices, or was rejected."""
    init_containers: int = 0
    """How many of `containers` are init containers."""

    def requests(self, container: str) -> ContainerRequests | None:
        """Requests of one container; None if the pod has no such container."""
        for name, resources in self.containers:
            if name == container:
                pod = PodIdentity(self.uid, self.namespace, self.name)
                return ContainerRequests(
                    *(pod, resources, self.labels, self.annotations),
                    *(self.owner, self.subdomain),
                )
        return None


def read_pod(document: Mapping[str, Any]) -> PodFacts:
    """Raises KeyError, TypeError or AttributeError for an object of another form."""
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
        str(spec.get("subdomain") or ""),
        (document.get("status") or {}).get("phase") in OVER,
        bool((document.get("status") or {}).get("startTime")),
        len(spec.get("initContainers") or ()),
    )


def controller_of(head: Mapping[str, Any]) -> OwnerRef | None:
    """The controller in an object's metadata; other owner references are ignored, because those
    owners did not create it."""
    for one in head.get("ownerReferences") or ():
        if one.get("controller") is True:
            return OwnerRef(one["apiVersion"], one["kind"], one["name"], one["uid"])
    return None


def read_owner(ref: OwnerRef, document: Mapping[str, Any]) -> tuple[Owner, OwnerRef | None]:
    """The owner, and the owner's own controller."""
    head = document["metadata"]
    return Owner(ref, _pairs(head.get("labels"))), controller_of(head)


def _amounts(resources: Mapping[str, Any]) -> Pairs:
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return tuple(sorted((str(name), str(amount)) for name, amount in asked.items()))


def _pairs(table: Any) -> Pairs:
    return tuple(sorted((str(key), str(value)) for key, value in (table or {}).items()))
