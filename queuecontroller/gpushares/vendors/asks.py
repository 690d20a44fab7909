"""What a pod's containers ask for, in whatever resource names: the document read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicecommon.kubernetes.quantity import QuantityError, parse_amount
from sluicecommon.reader import shown

Document = Mapping[str, Any]


class AskError(ValueError):
    """What a pod asks cannot be: the text names the resource or annotation, and what would do."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's, of one vendor's devices."""

    count: int
    memory_mib: int = 0
    """Of each; 0: `memory_percent` says it."""
    memory_percent: int = 0
    cores: int = 0
    """Of each, in the vendor's unit; 0: no promise."""
    by: str = ""
    """What it is asked by, where a vendor has several ways."""


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    amounts: Mapping[str, object]
    """What it asks: limits, and requests where there is no limit."""
    before: bool = False
    """An init container that ends before the others begin."""

    def has(self, resource: str) -> bool:
        return bool(resource) and resource in self.amounts

    def amount(self, resource: str, default: int = 0) -> int:
        """Raises AskError."""
        if not self.has(resource):
            return default
        given = self.amounts[resource]
        try:
            found = parse_amount(resource, given)
        except QuantityError as error:
            raise AskError(f"container {self.name}: {resource}: {error}") from None
        if found < 0 or found > 1 << 40:
            raise AskError(
                f"container {self.name}: {resource}: {shown(given)} is not from 0 to {1 << 40}"
            )
        return found


@dataclass(frozen=True, slots=True)
class PodAsk:
    """A pod, as far as devices matter; `asks` of each container, by vendor's word."""

    containers: tuple[Container, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, tuple[Ask | None, ...]] = field(default_factory=dict)


def containers_of(pod: Document) -> tuple[Container, ...]:
    """Init containers first, as allocations have them."""
    return tuple(_containers(pod.get("spec")))


def _containers(spec: object) -> Iterator[Container]:
    for key in ("initContainers", "containers"):
        listed = spec.get(key) if isinstance(spec, Mapping) else None
        for one in listed if isinstance(listed, list) else ():
            if not isinstance(one, Mapping):
                continue
            resources = one.get("resources")
            amounts: dict[str, object] = {}
            for kind in ("requests", "limits"):  # a limit goes before a request
                given = resources.get(kind) if isinstance(resources, Mapping) else None
                amounts |= given if isinstance(given, Mapping) else {}
            before = key == "initContainers" and one.get("restartPolicy") != "Always"
            yield Container(str(one.get("name") or ""), amounts, before)


def table(document: object, key: str) -> Mapping[str, Any]:
    """Of a document whose form nobody has checked; empty: it has none there."""
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def annotations_of(pod: Document) -> dict[str, str]:
    head = pod.get("metadata")
    found = head.get("annotations") if isinstance(head, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, str)}
