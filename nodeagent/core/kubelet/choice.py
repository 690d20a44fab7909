"""Chooses the device ids to prefer and the GPUs on which a grant is tried.

The kubelet counts slots, we count memory and time, so the preference keeps the two together: one
slot per GPU for a container with several, first on GPUs that a decision already names, then by the
node's strategy. The kubelet may ignore it; the ledger has the grant's real GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from nodeagent.core.grants.placement import GpuCapacity, Load
from nodeagent.ports.clients import GrantAsk
from nodeagent.ports.kubelet import PreferenceAsk, parse_slot
from nodeagent.units import GpuUuid

NO_RANK: Final[Mapping[str, int]] = MappingProxyType({})


def prefer(
    ask: PreferenceAsk,
    gpus: Mapping[GpuUuid, GpuCapacity],
    loads: Mapping[GpuUuid, Load],
    decided: Counter[GpuUuid],
    strategy: str,
    rank: Mapping[str, int] = NO_RANK,
) -> tuple[str, ...]:
    """Answer GetPreferredAllocation.

    `decided` counts, for each GPU, the pods that were decided and have not arrived yet; `rank`
    orders placements of MIG instances, lowest first. Raises NotOurs.
    """
    by_gpu: dict[GpuUuid, list[str]] = defaultdict(list)
    for text in ask.available:
        by_gpu[parse_slot(text).gpu].append(text)
    for slots in by_gpu.values():
        slots.sort(key=lambda text: (rank.get(text, 0), parse_slot(text).slot))
    chosen = list(dict.fromkeys(ask.must_include))
    taken = Counter(parse_slot(text).gpu for text in chosen)
    sign = 1 if strategy == "pack" else -1

    def order(gpu: GpuUuid) -> tuple[int, int, bool, int, int]:
        known = gpus.get(gpu)
        load = loads.get(gpu, Load())
        free = (known.memory_bytes if known else 0) - load.memory_bytes
        sick = known is None or not known.healthy or known.degraded
        index = known.index if known else len(gpus)
        return (taken[gpu], -decided[gpu], sick, sign * free, index)

    left = {gpu: [one for one in slots if one not in chosen] for gpu, slots in by_gpu.items()}
    while len(chosen) < ask.size:
        able = [gpu for gpu, slots in left.items() if slots]
        if not able:
            break  # The kubelet requested more than is available, so it decides.
        gpu = min(able, key=order)
        chosen.append(left[gpu].pop(0))
        taken[gpu] += 1
    return tuple(chosen)


def hinted_gpus(device_ids: Collection[str]) -> tuple[GpuUuid, ...]:
    """The GPUs of these slots, each once, in a stable order. Raises NotOurs."""
    return tuple(sorted({parse_slot(text).gpu for text in device_ids}))


def attempts(
    ask: GrantAsk, device_ids: Collection[str], only_hinted: bool = False
) -> tuple[GrantAsk, ...]:
    """The requests to try, in order: on the GPUs that were decided, else on those where the kubelet
    counts the container, else anywhere on the node.

    `only_hinted` is True if the container can see only the kubelet's GPUs.
    """
    hints = hinted_gpus(device_ids)
    if only_hinted:
        return (replace(ask, gpu_uuids=hints),) if set(ask.gpu_uuids) <= set(hints) else ()
    if ask.gpu_uuids or len(hints) != ask.gpus:
        return (ask,)
    return (replace(ask, gpu_uuids=hints), ask)
