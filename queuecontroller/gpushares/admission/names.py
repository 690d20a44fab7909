"""Names around pods that ask for parts of GPUs: what users write, what is written for them and by
nobody else, and what others call the same things."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from queuecontroller.gpushares.vendors import Vendor
from queuecontroller.gpushares.vendors.config import DeviceConfig
from queuecontroller.scheduler.placement.request import (
    GPU_POLICY,
    NODE_POLICY,
    NOUSE_INDEX,
    NOUSE_TYPE,
    NOUSE_UUID,
    NUMA_BIND,
    SHARE_POLICY,
    USE_INDEX,
    USE_TYPE,
    USE_UUID,
    VGPU_MODE,
)
from queuecontroller.scheduler.placement.weights import WEIGHTS

PLACEMENT: Final = "sluice.dev/placement"
"""On a pod: its node and GPUs, written with its binding or its release."""
ADMITTED_AS: Final = "sluice.dev/admitted-as"
"""On a pod: the question of the API server in which its quota was taken."""
SHARE_LABEL: Final = "sluice.dev/share"
"""Of claim templates that are made for pods that ask in HAMi's words."""
OPT_OUT: Final = "hami.io/webhook"
"""Label of a pod or a namespace; its value is `ignore`."""
IGNORE: Final = "ignore"

# KAI's and Run:ai's, on pods.
FRACTION: Final = "gpu-fraction"
FRACTION_MEMORY: Final = "gpu-memory"
FRACTION_DEVICES: Final = "gpu-fraction-num-devices"
FRACTION_CONTAINER: Final = "gpu-fraction-container-name"
FRACTIONS: Final = (FRACTION, FRACTION_MEMORY, FRACTION_DEVICES, FRACTION_CONTAINER)

# Volcano's.
VOLCANO_RESOURCES: Final[Mapping[str, str]] = {
    "volcano.sh/vgpu-number": "count",
    "volcano.sh/vgpu-memory": "memory",
    "volcano.sh/vgpu-memory-percentage": "percent",
    "volcano.sh/vgpu-cores": "cores",
}
"""By what each is in HAMi's names."""
VOLCANO_ANNOTATIONS: Final[Mapping[str, str]] = {
    "volcano.sh/vgpu-mode": VGPU_MODE,
    "volcano.sh/vgpu-use-gpuuuid": USE_UUID,
    "volcano.sh/vgpu-nouse-gpuuuid": NOUSE_UUID,
    "volcano.sh/vgpu-use-gputype": USE_TYPE,
    "volcano.sh/vgpu-nouse-gputype": NOUSE_TYPE,
}
_OURS_TO_CHOOSE: Final = (
    USE_TYPE,
    NOUSE_TYPE,
    USE_UUID,
    NOUSE_UUID,
    USE_INDEX,
    NOUSE_INDEX,
    NUMA_BIND,
    NODE_POLICY,
    GPU_POLICY,
    SHARE_POLICY,
    VGPU_MODE,
    WEIGHTS,
)
_KNOWN_ELSEWHERE: Final = (
    "sluice.dev/before-start",
    "sluice.dev/on-preemption",
    "sluice.dev/resize",
)
"""Of ours, on pods and jobs, for others here to read."""
LONGEST: Final = 317
"""Characters of an annotation's name: a domain, a slash and 63."""
WRITTEN: Final = frozenset(
    {
        PLACEMENT,
        ADMITTED_AS,
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/bind-phase",
        "hami.io/bind-time",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
        "volcano.sh/devices-to-allocate",
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-time",
        "volcano.sh/bind-phase",
        "volcano.sh/bind-time",
        "predicate-time",
    }
)
"""Of allocations: what a pod has by them was decided, and is not asked for."""
KEPT: Final = frozenset(
    {PLACEMENT, ADMITTED_AS, "hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"}
)
"""Of them those that nobody changes afterwards; plugins take their part out of the others."""


@dataclass(frozen=True, slots=True)
class Names:
    """Of one cluster's vendors: made once, asked for every pod."""

    written: frozenset[str]
    """Annotations that say what a pod was given."""
    kept: frozenset[str]
    """Of them those that stay as they are."""
    asked: Mapping[str, frozenset[str]]
    """Annotations that mean something on a pod, by domain."""
    resources: Mapping[str, frozenset[str]]
    """By domain."""
    vendor_of: Mapping[str, tuple[Vendor, ...]]
    """By resource."""
    hiding: tuple[Vendor, ...]
    """Whose devices are hidden from containers that ask for none."""


def names_of(devices: DeviceConfig) -> Names:
    vendors = devices.vendors
    of_vendors = {key for one in vendors for key in one.selecting}
    asked = {*_OURS_TO_CHOOSE, *FRACTIONS, *VOLCANO_ANNOTATIONS, *_KNOWN_ELSEWHERE, *of_vendors}
    vendor_of: dict[str, tuple[Vendor, ...]] = {}
    for one in vendors:
        for resource in one.resources:
            vendor_of[resource] = (*vendor_of.get(resource, ()), one)
    resources = {*devices.nvidia.resources, *VOLCANO_RESOURCES, *vendor_of}
    return Names(
        WRITTEN | {key for one in vendors for key in one.written},
        KEPT | {one.allocated for one in vendors},
        _by_domain(asked),
        _by_domain(resources),
        vendor_of,
        tuple(one for one in vendors if one.rules.hides(one)),
    )


def _by_domain(names: Iterable[str]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for one in names:
        found.setdefault(one.rpartition("/")[0], set()).add(one)
    return {domain: frozenset(names) for domain, names in found.items()}


def unknown(given: Iterable[str], names: Names) -> list[tuple[str, str]]:
    """Annotations that look like one that is read and are none, each with the nearest; ours and
    HAMi's also without one."""
    found = []
    for key in given:
        domain = key.rpartition("/")[0]
        known = names.asked.get(domain)
        if known is None or key in known or key in names.written or len(key) > LONGEST:
            continue
        near = nearest(key, known)
        if near or domain in ("hami.io", "sluice.dev"):
            found.append((key, near))
    return found


@lru_cache(maxsize=4096)
def nearest(key: str, known: frozenset[str]) -> str:
    """Of the same domain; empty: none is near."""
    domain, _, name = key.rpartition("/")
    tails = {one.rpartition("/")[2]: one for one in known}
    close = difflib.get_close_matches(name, tails, n=1, cutoff=0.75 if domain else 0.88)
    return tails[close[0]] if close else ""
