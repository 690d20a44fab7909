"""Usage of a namespace's quota by a pod: its request at creation, its allocation once bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.gpushares.admission.as_claims import as_asked
from queuecontroller.gpushares.admission.names import ADMITTED_AS
from queuecontroller.gpushares.admission.quota import PodUse
from queuecontroller.gpushares.admission.resizing import resized
from queuecontroller.gpushares.vendors import AskError, Vendor, asks_of, quota_of
from queuecontroller.gpushares.vendors.asks import Container, annotations_of, table
from queuecontroller.gpushares.vendors.config import DeviceConfig, Nvidia

OVER: Final = ("Succeeded", "Failed")
_MIB: Final = 1 << 20
_PERCENT_PPM: Final = 10_000


def counted(devices: DeviceConfig) -> frozenset[str]:
    """Resource names that quotas are kept for."""
    names = devices.nvidia
    of_vendors = {
        one for vendor in devices.vendors for one in (vendor.count, vendor.memory, vendor.cores)
    }
    return frozenset({names.count, names.memory, names.cores, *of_vendors} - {""})


def use_of(
    devices: DeviceConfig,
    pod: Mapping[str, Any],
    namespace: str = "",
    given: Sequence[tuple[int, int]] = (),
) -> PodUse:
    """A pod's usage. `namespace` is that of a pod being created; `given` are bytes and parts per
    million of each share in its allocation. An invalid request counts nothing: such a pod is
    refused and never runs."""
    head, spec = table(pod, "metadata"), table(pod, "spec")
    annotations = annotations_of(pod)
    return PodUse(
        namespace or str(head.get("namespace") or "default"),
        amounts(devices, pod, given),
        annotations.get(ADMITTED_AS, ""),
        str(spec.get("priorityClassName") or ""),
        spec.get("activeDeadlineSeconds") is not None,
        _best_effort(spec),
        bool(spec.get("nodeName")),
    )


def is_over(pod: Mapping[str, Any]) -> bool:
    return table(pod, "status").get("phase") in OVER


def amounts(
    devices: DeviceConfig, pod: Mapping[str, Any], given: Sequence[tuple[int, int]] = ()
) -> dict[str, int]:
    found = _nvidia(devices.nvidia, resized(as_asked(devices.nvidia, pod), devices.nvidia))
    if given:  # The allocation is exact even if a percentage of an unknown card was requested.
        names = devices.nvidia
        factor = _MIB * names.memory_factor
        exact = sum(-(-memory // factor) for memory, _ in given)
        found[names.memory] = max(found.get(names.memory, 0), exact)
        promised = sum(share for _, share in given) // _PERCENT_PPM
        found[names.cores] = max(found.get(names.cores, 0), promised)
    asking: tuple[Vendor, ...] = devices.vendors
    try:
        found |= quota_of(asking, asks_of(asking, pod))
    except AskError:
        return {}
    return {resource: amount for resource, amount in found.items() if amount}


def _nvidia(names: Nvidia, containers: tuple[Container, ...]) -> dict[str, int]:
    found = {}
    for resource in (names.count, names.memory, names.cores):
        running = before = 0
        for one in containers:
            try:
                each = 1 if resource == names.count else one.amount(resource)
                amount = one.amount(names.count) * each
            except AskError:
                amount = 0
            if one.before:  # It runs beside the sidecars that come before it.
                before = max(before, running + amount)
            else:
                running += amount
        found[resource] = max(running, before)
    return found


def _best_effort(spec: Mapping[str, Any]) -> bool:
    """True if the pod requests neither CPU nor memory, which is Kubernetes' definition of
    BestEffort."""
    for key in ("initContainers", "containers"):
        listed = spec.get(key)
        for one in listed if isinstance(listed, list) else ():
            resources = table(one, "resources")
            for kind in ("limits", "requests"):
                if {"cpu", "memory"} & table(resources, kind).keys():
                    return False
    return True
