"""The parsed requests of a pod's containers, independent of resource names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicecommon.kubernetes.quantity import QuantityError, parse_amount
from sluicecommon.reader import shown

Document = Mapping[str, Any]


class AskError(ValueError):
    """Raised for an invalid request; the text names the resource or annotation and a valid form."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Request of one container for devices of one vendor."""

    count: int
    memory_mib: int = 0
    """Memory per device; 0: `memory_percent` applies."""
    memory_percent: int = 0
    cores: int = 0
    """Cores per device in the vendor's unit; 0: no guarantee."""
    by: str = ""
    """Kind of request, for vendors with several."""


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    amounts: Mapping[str, object]
    """Limits, and requests where a resource has no limit."""
    before: bool = False
    """True for an init container that ends before the others start."""

    def has(self, resource: str) -> bool:
        return bool(resource) and resource in self.amounts

    def amount(self, resource: str, default: int = 0) -> int:
        """Amount of a resource. Raises AskError."""
        if not self.has(resource):
            return default
        given = self.amounts[resource]
        try:
            found = parse_amount(resource, given)
        except QuantityError as error:
            raise AskError(f"container {self.name}: {resource}: {error}") from None
        if found < 0 or found > 1 << 40:
            raise AskError(
                f"container {self.name}: {resource}: must be from 0 to {1 << 40},"
                f" got {shown(given)}"
            )
        return found


@dataclass(frozen=True, slots=True)
class PodAsk:
    """Requests of a pod: `asks` has one entry per container, by the vendor's word."""

    containers: tuple[Container, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, tuple[Ask | None, ...]] = field(default_factory=dict)


def containers_of(pod: Document) -> tuple[Container, ...]:
    """Containers in the order of allocations, init containers first."""
    return tuple(_containers(pod.get("spec")))


def _containers(spec: object) -> Iterator[Container]:
    for key in ("initContainers", "containers"):
        listed = spec.get(key) if isinstance(spec, Mapping) else None
        for one in listed if isinstance(listed, list) else ():
            if not isinstance(one, Mapping):
                continue
            resources = one.get("resources")
            amounts: dict[str, object] = {}
            for kind in ("requests", "limits"):  # A limit takes precedence over a request.
                given = resources.get(kind) if isinstance(resources, Mapping) else None
                amounts |= given if isinstance(given, Mapping) else {}
            before = key == "initContainers" and one.get("restartPolicy") != "Always"
            yield Container(str(one.get("name") or ""), amounts, before)


def table(document: object, key: str) -> Mapping[str, Any]:
    """A mapping inside of an unvalidated document; empty if there is none."""
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def annotations_of(pod: Document) -> dict[str, str]:
    head = pod.get("metadata")
    found = head.get("annotations") if isinstance(head, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, str)}
