"""Names around pods that ask for parts of GPUs: what users write, what is written for them and by
nobody else, and what others call the same things."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from queuecontroller.extender.pods import PLACEMENT
from queuecontroller.placement.request import (
    GPU_POLICY,
    NODE_POLICY,
    NOUSE_TYPE,
    NOUSE_UUID,
    NUMA_BIND,
    SHARE_POLICY,
    USE_TYPE,
    USE_UUID,
)
from queuecontroller.vendors import Vendor

VGPU_MODE: Final = "nvidia.com/vgpu-mode"
WEIGHTS: Final = "hami.io/device-scoring-weights"
ADMITTED_AS: Final = "sluice.dev/admitted-as"
"""On a pod: the question of the API server in which its quota was taken."""
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
    NUMA_BIND,
    NODE_POLICY,
    GPU_POLICY,
    SHARE_POLICY,
    VGPU_MODE,
    WEIGHTS,
)
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
KEPT: Final = frozenset({PLACEMENT, ADMITTED_AS, "hami.io/vgpu-node", "hami.io/vgpu-devices-allocated"})
"""Of them those that nobody changes afterwards; plugins take their part out of the others."""


def written_by_us(vendors: Iterable[Vendor]) -> frozenset[str]:
    """All of them, other vendors' too."""
    return WRITTEN | {key for one in vendors for key in one.written}


def kept(vendors: Iterable[Vendor]) -> frozenset[str]:
    return KEPT | {one.allocated for one in vendors}


def asked_by_users(vendors: Iterable[Vendor]) -> frozenset[str]:
    """Annotations that mean something on a pod."""
    of_vendors = {key for one in vendors for key in one.selecting}
    return frozenset((*_OURS_TO_CHOOSE, *FRACTIONS, *VOLCANO_ANNOTATIONS, *of_vendors))


def unknown(given: Iterable[str], known: frozenset[str]) -> list[tuple[str, str]]:
    """Annotations that look like one that is read and are none, each with the nearest; ours and
    HAMi's also without one."""
    found = []
    for key in given:
        if key in known or len(key) > 317:
            continue
        near = nearest(key, known)
        if key.startswith(("hami.io/", "sluice.dev/")) or near:
            found.append((key, near))
    return found


def nearest(key: str, known: Iterable[str]) -> str:
    """Empty: none is near."""
    prefix, slash, name = key.rpartition("/")
    # In another domain names may be alike by chance; the rest of the name decides.
    same = [one for one in known if one.rpartition("/")[0] == prefix] if slash else []
    if same:
        tails = {one.rpartition("/")[2]: one for one in same}
        close = difflib.get_close_matches(name, tails, n=1, cutoff=0.75)
        if close:
            return tails[close[0]]
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.88)
    return close[0] if close else ""
