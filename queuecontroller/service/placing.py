"""Which GPUs of which node a pod gets: the port, and the plain first-fit behind it.

First fit on the fullest GPU that has room (whole GPUs stay free), nodes by name. A paused pod keeps
its memory and its slot but no share of the time; it can only go on where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from queuecontroller.engine.model import PodSet, ResourceFlavor
from queuecontroller.records import Assignment, Desired, GpuAsk, GpuShare, PodState

from .capacity import TAKES_WORK, GpuCapacity
from .nodes import Node

WHOLE_PPM: Final = 1_000_000
MIB: Final = 1 << 20
GPU: Final = "nvidia.com/gpu"
GPU_MEMORY: Final = "nvidia.com/gpumem"
"""MiB on each GPU, as HAMi counts it."""
GPU_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
GPU_CORES: Final = "nvidia.com/gpucores"
"""Percent of each GPU's time, as HAMi counts it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One pod to place."""

    pod: str
    ask: GpuAsk
    pod_set: PodSet
    node: str = ""
    """Only there."""
    flavors: tuple[ResourceFlavor, ...] = ()
    """What the admission gave: a node must carry their labels."""
    avoid: frozenset[str] = frozenset()
    """Nodes that refused it a moment ago."""


@dataclass(frozen=True, slots=True)
class Placed:
    pod: str
    node: str
    gpus: tuple[GpuShare, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    reason: str


class Placer(Protocol):
    def place(
        self, wanted: Sequence[Wanted], nodes: Sequence[Node], taken: Iterable[Assignment]
    ) -> list[Placed] | Unplaced:
        """All pods or none. `taken` are the assignments that still hold something."""


@dataclass(slots=True)
class _Free:
    gpu: GpuCapacity
    memory_bytes: int
    share_ppm: int
    slots: int


@dataclass(slots=True)
class _Room:
    node: Node
    gpus: dict[str, _Free] = field(default_factory=dict)


class FirstFit:
    def place(
        self, wanted: Sequence[Wanted], nodes: Sequence[Node], taken: Iterable[Assignment]
    ) -> list[Placed] | Unplaced:
        if not nodes:
            return Unplaced("no node is connected")
        rooms = _rooms(nodes, taken)
        placed: list[Placed] = []
        for one in wanted:
            found = _fit(one, rooms)
            if isinstance(found, Unplaced):
                return found
            placed.append(found)
        return placed


def _rooms(nodes: Sequence[Node], taken: Iterable[Assignment]) -> list[_Room]:
    rooms = {node.name: _Room(node) for node in sorted(nodes, key=lambda one: one.name)}
    for room in rooms.values():
        for gpu in room.node.capacity.gpus:
            room.gpus[gpu.uuid] = _Free(
                gpu,
                gpu.memory_bytes - gpu.outside_memory_bytes,
                gpu.share_ppm - gpu.outside_share_ppm,
                gpu.slots - gpu.outside_slots,
            )
    for one in taken:
        held = rooms.get(one.node)
        for share in one.gpus if held is not None else ():
            free = held.gpus.get(share.uuid) if held is not None else None
            if free is None:
                continue
            free.memory_bytes -= share.memory_bytes
            free.slots -= 1
            resting = one.state is PodState.PAUSED and one.desired is Desired.PAUSE
            if one.ask.policy == "hard" and not resting:
                free.share_ppm -= share.share_ppm
    return list(rooms.values())


def _fit(one: Wanted, rooms: Sequence[_Room]) -> Placed | Unplaced:
    reasons: list[str] = []
    for room in rooms:
        why = _unfit_node(one, room.node)
        if why is not None:
            reasons.append(f"{room.node.name}: {why}")
            continue
        fitting: list[tuple[int, int, _Free, int]] = []
        obstacles: list[str] = []
        for free in room.gpus.values():
            if one.ask.gpu_uuids and free.gpu.uuid not in one.ask.gpu_uuids:
                continue
            need = memory_on(one.ask, free.gpu)
            obstacle = _obstacle(one.ask, free, need)
            if obstacle is None:
                fitting.append((free.memory_bytes, free.gpu.index, free, need))
            else:
                obstacles.append(f"GPU {free.gpu.index} {obstacle}")
        count = len(one.ask.gpu_uuids) or one.ask.gpus
        if len(fitting) < count:
            reasons.append(f"{room.node.name}: {'; '.join(obstacles) or 'too few GPUs'}")
            continue
        shares = []
        for _, _, free, need in sorted(fitting, key=lambda found: found[:2])[:count]:
            free.memory_bytes -= need
            free.slots -= 1
            if one.ask.policy == "hard":
                free.share_ppm -= one.ask.share_ppm
            shares.append(GpuShare(free.gpu.uuid, need, one.ask.share_ppm))
        return Placed(one.pod, room.node.name, tuple(shares))
    if one.node and not reasons:
        return Unplaced(f"node {one.node} is not connected")
    return Unplaced(f"{describe(one.ask)} for pod {one.pod or 'main'}: {'; '.join(reasons)}")


def _unfit_node(one: Wanted, node: Node) -> str | None:
    if one.node and node.name != one.node:
        return f"the process waits on {one.node}"
    if node.name in one.avoid:
        return "refused it a moment ago"
    if node.capacity.unschedulable:
        return "takes no new work"
    labels = node.capacity.labels
    for flavor in one.flavors:
        for name, value in flavor.node_labels.items():
            if labels.get(name) != value:
                return f"lacks the label {name}={value} of flavor {flavor.name}"
    for name, value in one.pod_set.node_selector.items():
        if labels.get(name) != value:
            return f"lacks the label {name}={value}"
    tolerations = (*one.pod_set.tolerations, *(t for f in one.flavors for t in f.tolerations))
    for taint in node.capacity.taints:
        if taint.effect != "PreferNoSchedule" and not any(t.tolerates(taint) for t in tolerations):
            return f"has the taint {taint.key}={taint.value}"
    return None


def _obstacle(ask: GpuAsk, free: _Free, need_bytes: int) -> str | None:
    if free.gpu.health not in TAKES_WORK:
        return f"is {free.gpu.health}"
    if free.slots < 1:
        return "has no slot left"
    if need_bytes > free.memory_bytes:
        return f"has {max(0, free.memory_bytes) // MIB} of {need_bytes // MIB} MiB free"
    if ask.policy == "hard" and ask.share_ppm > free.share_ppm:
        return f"has {max(0, free.share_ppm) // 10_000} of {ask.share_ppm // 10_000} % free"
    return None


def memory_on(ask: GpuAsk, gpu: GpuCapacity) -> int:
    if ask.memory_bytes is not None:
        return ask.memory_bytes
    part = WHOLE_PPM if ask.memory_ppm is None else ask.memory_ppm
    return gpu.memory_bytes * part // WHOLE_PPM


def describe(ask: GpuAsk) -> str:
    memory = (
        f"{ask.memory_bytes // MIB} MiB"
        if ask.memory_bytes is not None
        else f"{(ask.memory_ppm or WHOLE_PPM) / 10_000:g} % of the memory"
    )
    count = len(ask.gpu_uuids) or ask.gpus
    plural = "s" if count > 1 else ""
    return f"{count} GPU{plural} with {memory} and {ask.share_ppm / 10_000:g} % of the time"


def ask_of(pod_set: PodSet) -> GpuAsk | None:
    """What a pod's containers request, in HAMi's resource names; None without a GPU."""
    gpus = sum(one.get(GPU, 0) for one in pod_set.containers)
    if gpus < 1:
        return None

    def most(name: str) -> int:
        return max(one.get(name, 0) for one in pod_set.containers)

    memory, percent, cores = most(GPU_MEMORY), most(GPU_MEMORY_PERCENT), most(GPU_CORES)
    whole = min(100, percent or 100) * 10_000
    return GpuAsk(
        gpus=gpus,
        memory_bytes=memory * MIB if memory else None,
        memory_ppm=None if memory else whole,
        share_ppm=min(100, cores or 100) * 10_000,
    )


def requests_of(ask: GpuAsk) -> Mapping[str, int]:
    """The same ask in HAMi's resource names, for the quota; parts are rounded up."""
    requests = {GPU: len(ask.gpu_uuids) or ask.gpus, GPU_CORES: -(-ask.share_ppm // 10_000)}
    if ask.memory_bytes is not None:
        requests[GPU_MEMORY] = -(-ask.memory_bytes // MIB)
    else:
        requests[GPU_MEMORY_PERCENT] = -(-(ask.memory_ppm or WHOLE_PPM) // 10_000)
    return requests
