"""Choice within one node: its GPUs, or the places for MIG instances on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from queuecontroller.scheduler.placement.capacity import TAKES_WORK
from queuecontroller.scheduler.placement.mig import Card, arrange
from queuecontroller.scheduler.placement.request import GpuRequest, Policy
from queuecontroller.scheduler.placement.stock import GpuRoom, NodeRoom, Share


def choose_gpus(
    room: NodeRoom, request: GpuRequest, why: Callable[[str], None]
) -> tuple[Share, ...] | None:
    """The GPUs of one node, or None with the reason appended to `why`."""
    fitting: list[GpuRoom] = []
    obstacle = "has too few GPUs"
    for gpu in room.gpus.values():
        reason = request.wants(gpu.gpu) or _full(gpu, request)
        if reason is None:
            fitting.append(gpu)
        else:
            obstacle = f"GPU {gpu.gpu.index} {reason}"
    if len(fitting) < request.count:
        why(obstacle)
        return None
    together = _together(fitting, request)
    if together is None:
        why("has its free GPUs on several NUMA nodes")
        return None
    return tuple(
        Share(
            gpu.gpu.uuid,
            request.memory_on(gpu.gpu),
            request.share_ppm if request.hard else 0,
            request.exclusive,
        )
        for gpu in together
    )


def _full(gpu: GpuRoom, request: GpuRequest) -> str | None:
    if gpu.gpu.health not in TAKES_WORK:
        return f"is {gpu.gpu.health}"
    if gpu.gpu.mig_enabled:
        return "is in MIG mode and gives instances only"
    if gpu.slots < 1:
        return "has no slot left"
    if gpu.alone:
        return "is in exclusive use"
    if request.exclusive and gpu.holders:
        return "is in use, and this pod requests exclusive use"
    if request.idle_only and gpu.holders:
        return "is in use, and this pod's policy is mutex"
    need = request.memory_on(gpu.gpu)
    if need > gpu.memory_bytes:
        return f"has {max(0, gpu.memory_bytes) >> 20} of {need >> 20} MiB free"
    if request.hard and request.share_ppm > gpu.share_ppm:
        free = max(0, gpu.share_ppm) // 10_000
        return f"has {free} of {request.share_ppm // 10_000} % free"
    return None


def _together(fitting: Sequence[GpuRoom], request: GpuRequest) -> list[GpuRoom] | None:
    """The requested number of them: linked ones first, then one NUMA node's, else by policy."""
    sign = 1 if request.gpu_policy is Policy.BINPACK else -1

    def fullness(gpu: GpuRoom) -> tuple[float, int, int]:
        if request.weights:
            return (sign * _free(gpu, request.weights), 0, gpu.gpu.index)
        return (sign * gpu.memory_bytes, sign * gpu.share_ppm, gpu.gpu.index)

    ordered = sorted(fitting, key=fullness)
    count = request.count
    if count == 1 and request.by_links:
        # Well linked GPUs stay together for requests that need them.
        return [min(ordered, key=lambda gpu: sum(gpu.gpu.nvlinks.values()))]
    if count == 1:
        return ordered[:1]
    groups = [*_linked(ordered), *_numa_groups(ordered)]
    if request.by_links or request.by_numa:
        preferred = _linked(ordered) if request.by_links else _numa_groups(ordered)
        groups = [group for group in preferred if len(group) >= count] or groups
    if request.one_numa_node:
        groups = [
            group for group in groups if len({gpu.gpu.numa_node for gpu in group[:count]}) == 1
        ]
    enough = [group for group in groups if len(group) >= count]
    if enough and request.by_links:
        return max((group[:count] for group in enough), key=_links)
    if enough:
        # The smallest sufficient group is taken: larger ones stay whole for requests that need
        # them.
        return min(enough, key=len)[:count]
    return None if request.one_numa_node else ordered[:count]


def _free(gpu: GpuRoom, weights: Sequence[int]) -> float:
    """Free slots, time and memory, each as a part of the whole card's, by weight."""
    card = gpu.gpu
    parts = (
        gpu.slots / max(1, card.slots),
        gpu.share_ppm / max(1, card.share_ppm),
        gpu.memory_bytes / max(1, card.memory_bytes),
    )
    return sum(weight * part for weight, part in zip(weights, parts, strict=True))


def _linked(gpus: Sequence[GpuRoom]) -> list[list[GpuRoom]]:
    """Sets in which every two GPUs have links, grown around each GPU, most links first."""
    groups = []
    for start in gpus:
        group = [start]
        links = start.gpu.nvlinks
        for other in sorted(gpus, key=lambda g: -links.get(g.gpu.uuid, 0)):
            if other is not start and all(m.gpu.nvlinks.get(other.gpu.uuid) for m in group):
                group.append(other)
        if len(group) > 1:
            groups.append(group)
    return groups


def _links(gpus: Sequence[GpuRoom]) -> int:
    """Number of links among the GPUs."""
    uuids = [gpu.gpu.uuid for gpu in gpus]
    return sum(gpu.gpu.nvlinks.get(uuid, 0) for gpu in gpus for uuid in uuids)


def _numa_groups(gpus: Sequence[GpuRoom]) -> list[list[GpuRoom]]:
    groups: dict[int, list[GpuRoom]] = {}
    for gpu in gpus:
        if gpu.gpu.numa_node is not None:
            groups.setdefault(gpu.gpu.numa_node, []).append(gpu)
    return list(groups.values())


def choose_instances(
    room: NodeRoom, request: GpuRequest, why: Callable[[str], None]
) -> tuple[Share, ...] | None:
    """MIG instances on the GPUs of one node, or None with the reason appended to `why`."""
    wanted = Counter(request.mig)
    reasons = {
        gpu.gpu.uuid: request.wants(gpu.gpu) or _no_instances(gpu, wanted)
        for gpu in room.gpus.values()
    }
    cards = [gpu for gpu in room.gpus.values() if reasons[gpu.gpu.uuid] is None]
    if not cards:
        some = next(iter(room.gpus.values()), None)
        why(f"GPU {some.gpu.index} {reasons[some.gpu.uuid]}" if some else "has too few GPUs")
        return None
    sign = 1 if request.gpu_policy is Policy.SPREAD else -1
    cards.sort(key=lambda gpu: (sign * sum(s.size for s in gpu.spans), gpu.gpu.index))
    found = arrange(
        [
            Card({one.name: gpu.gpu.mig_spans(one.name) for one in gpu.gpu.mig_profiles}, gpu.spans)
            for gpu in cards
        ],
        request.mig,
    )
    if found is None:
        free = ", ".join(
            f"{sum(gpu.mig_free(name) for gpu in cards)} of {count} {name}"
            for name, count in sorted(wanted.items())
        )
        why(f"has room for {free}{' one by one' if len(wanted) > 1 else ''}")
        return None
    return tuple(
        Share(
            cards[at].gpu.uuid,
            cards[at].gpu.mig_memory_bytes(name),
            share_ppm=0,
            mig=name,
            span=span,
        )
        for name, (at, span) in zip(request.mig, found, strict=True)
    )


def _no_instances(gpu: GpuRoom, wanted: Counter[str]) -> str | None:
    if gpu.gpu.health not in TAKES_WORK:
        return f"is {gpu.gpu.health}"
    if not gpu.gpu.mig_enabled:
        return "is not in MIG mode"
    if not any(gpu.gpu.mig_spans(name) for name in wanted):
        offered = ", ".join(one.name for one in gpu.gpu.mig_profiles) or "nothing"
        return f"does not offer {', '.join(sorted(wanted))} (but {offered})"
    return None
