"""Which slots the kubelet is advised to take, and which GPUs a grant is tried on.

The kubelet counts slots, we count memory and time, so advice keeps the two together: one slot per
GPU for a container that wants several, first on GPUs that a decision names already, then as the
node's strategy says. The kubelet may do otherwise; the ledger says where a grant is.
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
    """`decided`: how many pods that have not come yet will be on each GPU; `rank`: of places for
    MIG instances, which goes first. Raises NotOurs."""
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
            break  # the kubelet asked for more than it offers: it decides
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
    """What to try, in order: where it was decided, else where the kubelet counts it, else
    anywhere on the node. `only_hinted`: the container sees those GPUs, whatever we say."""
    hints = hinted_gpus(device_ids)
    if only_hinted:
        return (replace(ask, gpu_uuids=hints),) if set(ask.gpu_uuids) <= set(hints) else ()
    if ask.gpu_uuids or len(hints) != ask.gpus:
        return (ask,)
    return (replace(ask, gpu_uuids=hints), ask)
