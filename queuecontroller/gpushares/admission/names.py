"""Names of annotations, labels and resources on pods that request parts of GPUs: those that users
write, those that only the controller writes, and their equivalents in other schedulers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from queuecontroller.gpushares.vendors import Vendor
from queuecontroller.gpushares.vendors.config import DeviceConfig
from sluicecommon.hami.names import (
    ALLOCATED,
    BIND_PHASE,
    BIND_TIME,
    CHOOSING,
    DOMAIN,
    MIG_ALLOCATIONS,
    NODE,
    NOUSE_TYPE,
    NOUSE_UUID,
    TIME,
    TO_ALLOCATE,
    USE_TYPE,
    USE_UUID,
    VGPU_MODE,
)
from sluicecommon.kai.fractions import FRACTIONS, PER_CONTAINER, SHARING_MODE
from sluicecommon.kai.waiting import PREEMPTION_DELAY
from sluicecommon.pod_annotations import CHECKPOINT, PLACEMENT, SHARE_POLICY

ADMITTED_AS: Final = "sluice.dev/admitted-as"
"""Annotation of a pod: UID of the admission request that reserved its quota."""
SHARE_LABEL: Final = "sluice.dev/share"
"""Label of ResourceClaimTemplates made for pods that request HAMi's resources."""

# Names of Volcano.
VOLCANO_RESOURCES: Final[Mapping[str, str]] = {
    "volcano.sh/vgpu-number": "count",
    "volcano.sh/vgpu-memory": "memory",
    "volcano.sh/vgpu-memory-percentage": "memory_percent",
    "volcano.sh/vgpu-cores": "cores",
}
"""The field of `Nvidia` with HAMi's name, by Volcano's resource name."""
VOLCANO_ANNOTATIONS: Final[Mapping[str, str]] = {
    "volcano.sh/vgpu-mode": VGPU_MODE,
    "volcano.sh/vgpu-use-gpuuuid": USE_UUID,
    "volcano.sh/vgpu-nouse-gpuuuid": NOUSE_UUID,
    "volcano.sh/vgpu-use-gputype": USE_TYPE,
    "volcano.sh/vgpu-nouse-gputype": NOUSE_TYPE,
}
_OURS_TO_CHOOSE: Final = (*CHOOSING, SHARE_POLICY)
_KNOWN_ELSEWHERE: Final = (
    "sluice.dev/before-start",
    "sluice.dev/group-rules",
    "sluice.dev/on-preemption",
    "sluice.dev/resize",
)
"""Our annotations on pods and jobs that other components read."""
MAX_LOOKED_UP: Final = 64
"""Unknown names of one pod for which a similar one is searched; each takes a millisecond."""
LONGEST: Final = 317
"""Characters of an annotation's name: a domain, a slash and 63."""
WRITTEN: Final = frozenset(
    {
        PLACEMENT,
        CHECKPOINT,
        ADMITTED_AS,
        NODE,
        TIME,
        BIND_PHASE,
        BIND_TIME,
        TO_ALLOCATE,
        ALLOCATED,
        MIG_ALLOCATIONS,
        "volcano.sh/devices-to-allocate",
        "volcano.sh/vgpu-ids-new",
        "volcano.sh/vgpu-node",
        "volcano.sh/vgpu-time",
        "volcano.sh/bind-phase",
        "volcano.sh/bind-time",
        "predicate-time",
    }
)
"""Annotations that record an allocation: results of a decision, never requests."""
KEPT: Final = frozenset({PLACEMENT, CHECKPOINT, ADMITTED_AS, NODE, ALLOCATED})
"""Allocation annotations that only the controller changes once the pod is there. Device plugins
consume the others."""


@dataclass(frozen=True, slots=True)
class Names:
    """Annotation and resource names of a cluster's vendors; built once and used for every pod."""

    written: frozenset[str]
    """Annotations that record an allocation."""
    kept: frozenset[str]
    """Allocation annotations that only the controller changes."""
    asked: Mapping[str, frozenset[str]]
    """Annotations that request something on a pod, by domain."""
    resources: Mapping[str, frozenset[str]]
    """Resource names by domain."""
    vendor_of: Mapping[str, tuple[Vendor, ...]]
    """Vendors by resource name."""
    hiding: tuple[Vendor, ...]
    """Vendors whose devices are hidden from containers that request none."""


def names_of(devices: DeviceConfig) -> Names:
    vendors = devices.vendors
    of_vendors = {key for one in vendors for key in one.selecting}
    of_kai = {*FRACTIONS, SHARING_MODE, PREEMPTION_DELAY}
    known = {*_OURS_TO_CHOOSE, *VOLCANO_ANNOTATIONS, *_KNOWN_ELSEWHERE}
    asked = known | of_kai | of_vendors
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


def unknown(given: Iterable[str], names: Names, most: int) -> list[tuple[str, str]]:
    """Annotations that resemble a known one but are unknown, each with the nearest known name. In
    our domain and HAMi's, unknown annotations without a near name are listed as well. Only the
    first MAX_LOOKED_UP unknown names are looked at, and no more than `most` are returned."""
    found: list[tuple[str, str]] = []
    looked_up = 0
    for key in given:
        if len(found) >= most or looked_up >= MAX_LOOKED_UP:
            break
        domain = key.rpartition("/")[0]
        known = names.asked.get(domain)
        if known is None or key in known or key in names.written or len(key) > LONGEST:
            continue
        if key.startswith(PER_CONTAINER):  # Known or refused, see `sluicecommon.kai`.
            continue
        looked_up += 1
        near = nearest(key, known)
        if near or domain in (DOMAIN, "sluice.dev"):
            found.append((key, near))
    return found


@lru_cache(maxsize=4096)
def nearest(key: str, known: frozenset[str]) -> str:
    """The most similar known name in the same domain; empty if none is similar."""
    domain, _, name = key.rpartition("/")
    tails = {one.rpartition("/")[2]: one for one in known}
    close = difflib.get_close_matches(name, tails, n=1, cutoff=0.75 if domain else 0.88)
    return tails[close[0]] if close else ""
