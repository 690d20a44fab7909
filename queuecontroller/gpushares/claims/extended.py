"""Extended resources whose devices kube-scheduler allocates (DRAExtendedResource).

A DeviceClass may name an extended resource. For pods that request it, kube-scheduler makes the
claim itself, so there is no template to count. What their containers request counts for the quota
that the class is mapped to, or, without a mapping, for the quota of the resource's own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from queuecontroller.gpushares.claims.counting import Document, Known, class_selectors
from queuecontroller.scheduler.model.objects import DeviceChoice
from sluicecommon.kubernetes.quantity import QuantityError, exact_value, saturate
from sluicecommon.reader import Reader, shown

_NATIVE: Final = ("kubernetes.io/", "hugepages-")


def is_extended(name: str) -> bool:
    """Return True for the name of an extended resource: one with a domain other than Kubernetes'
    own."""
    return "/" in name and not name.startswith(_NATIVE)


def extended_classes(classes: Iterable[Document]) -> dict[str, Document]:
    """Return the DeviceClass of each extended resource. Of several that name one, Kubernetes takes
    the newest, and of equally old ones the first by name."""
    found: dict[str, Document] = {}
    for one in classes:
        name = (one.get("spec") or {}).get("extendedResourceName")
        if isinstance(name, str) and is_extended(name):
            found[name] = min(found.get(name, one), one, key=_Precedence)
    return found


class _Precedence:
    """Order of the DeviceClasses of one extended resource, the one that is taken first."""

    def __init__(self, document: Document) -> None:
        head = document["metadata"]
        self._made: str = head.get("creationTimestamp") or ""
        self._name: str = head["name"]

    def __lt__(self, other: _Precedence) -> bool:
        if self._made != other._made:
            return self._made > other._made
        return self._name < other._name


def extended_usage(spec: Reader, requested: Mapping[str, int], known: Known) -> dict[str, int]:
    """Return the usage by quota name of the extended resources that the containers of a pod
    request. Errors are added to the reader's problems."""
    total: dict[str, int] = {}
    for name, amount in requested.items():
        document = known.extended[name]
        at = _containers_with(spec, name)
        parts = [one for one in at if not _is_whole(one, name)]
        if parts:
            continue
        given = document["metadata"]["name"]
        mapped = known.classes.get(given)
        if mapped is not None and mapped.sources:
            kind = "a counter" if mapped.sources[0][1].counter else "a capacity"
            at[0].problem(
                f"resources.requests.{name}",
                f"devices of DeviceClass {shown(given)} count by {kind}, which the number of"
                " devices does not tell",
                "use a ResourceClaimTemplate",
            )
            continue
        quota = name if mapped is None else mapped.resource
        total[quota] = saturate(total.get(quota, 0) + amount)
    return total


def _containers_with(spec: Reader, name: str) -> list[Reader]:
    """Return the containers that request or are limited to some of a resource."""
    every = [*spec.children("initContainers"), *spec.children("containers")]
    return [one for one in every if _amount(one, name) is not None]


def _amount(container: Reader, name: str) -> object:
    resources = container.child("resources")
    found = resources.child("requests").raw(name)
    return resources.child("limits").raw(name) if found is None else found


def _is_whole(container: Reader, name: str) -> bool:
    """Return False with a problem if a container requests a part of a device."""
    given = _amount(container, name)
    try:
        if exact_value(str(given)).denominator == 1:
            return True
    except QuantityError:
        return True  # Reading the container's requests has reported it.
    what = f"{shown(given)} is not a number of devices"
    container.problem(f"resources.requests.{name}", what, "write a whole number")
    return False


def extended_requests(
    requested: Mapping[str, int], known: Known
) -> tuple[tuple[DeviceChoice, ...], ...]:
    """Return a pod's requests for the devices of its extended resources. One whose class cannot be
    evaluated is left out: kube-scheduler decides."""
    if known.matching is None:
        return ()
    found = []
    for name, amount in requested.items():
        devices = known.matching.find(class_selectors(known.extended[name]), ())
        if devices is not None:
            found.append((DeviceChoice(devices, amount),))
    return tuple(found)
