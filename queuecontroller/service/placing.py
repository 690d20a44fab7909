"""Which GPUs of which node a pod gets: the port, and the placement model behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from queuecontroller.engine.model import PodSet, ResourceFlavor
from queuecontroller.placement.capacity import NodeCapacity
from queuecontroller.placement.choose import NoPlace, PodToPlace, Topology, place
from queuecontroller.placement.request import WHOLE_PPM, GpuRequest, annotated
from queuecontroller.placement.stock import Share, Stock
from queuecontroller.records import Assignment, Desired, GpuAsk, GpuShare, PodKey, PodState

from .nodes import Node

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
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the pod: HAMi's wishes about GPUs."""


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


class StockPlacer:
    """The placement model behind the port: what is free is kept from call to call, and brought up
    to date by what has changed."""

    def __init__(self) -> None:
        self._stock = Stock()
        self._capacities: dict[str, NodeCapacity] = {}
        self._taken: dict[PodKey, tuple[str, tuple[Share, ...]]] = {}

    def place(
        self, wanted: Sequence[Wanted], nodes: Sequence[Node], taken: Iterable[Assignment]
    ) -> list[Placed] | Unplaced:
        self._follow(nodes, taken)
        found = place(self._stock, [_pod(one) for one in wanted], _topology(wanted))
        if isinstance(found, NoPlace):
            return Unplaced(found.reason)
        asks = {one.pod: one.ask for one in wanted}
        return [
            Placed(
                one.pod,
                one.node,
                tuple(
                    GpuShare(share.uuid, share.memory_bytes, asks[one.pod].share_ppm)
                    for share in one.shares
                ),
            )
            for one in found
        ]

    def _follow(self, nodes: Sequence[Node], taken: Iterable[Assignment]) -> None:
        reported = {node.name: node.capacity for node in nodes}
        for name in self._capacities.keys() - reported.keys():
            self._stock.forget(name)
        for name, capacity in reported.items():
            if self._capacities.get(name) is not capacity:
                self._stock.report(name, capacity)
        self._capacities = reported
        holds = {one.key: (one.node, _shares(one)) for one in taken if one.gpus}
        for key, before in self._taken.items():
            if holds.get(key) != before:
                self._stock.release(key)
        for key, now in holds.items():
            if self._taken.get(key) != now:
                self._stock.hold(key, *now)
        self._taken = holds


def _shares(one: Assignment) -> tuple[Share, ...]:
    """A paused pod keeps its memory and its slot, but no share of the time."""
    resting = one.state is PodState.PAUSED and one.desired is Desired.PAUSE
    promised = one.ask.policy == "hard" and not resting
    return tuple(
        Share(share.uuid, share.memory_bytes, share.share_ppm if promised else 0)
        for share in one.gpus
    )


def _pod(one: Wanted) -> PodToPlace:
    ask = one.ask
    request = GpuRequest(
        gpus=ask.gpus,
        memory_bytes=ask.memory_bytes,
        memory_ppm=ask.memory_ppm,
        share_ppm=ask.share_ppm,
        hard=ask.policy == "hard",
        gpu_uuids=ask.gpu_uuids,
    )
    labels = {k: v for flavor in one.flavors for k, v in flavor.node_labels.items()}
    tolerations = (*one.pod_set.tolerations, *(t for f in one.flavors for t in f.tolerations))
    return PodToPlace(
        one.pod,
        replace(request, **annotated(one.annotations)),  # type: ignore[arg-type]
        one.node,
        tuple({**one.pod_set.node_selector, **labels}.items()),
        tolerations,
        one.avoid,
    )


def _topology(wanted: Sequence[Wanted]) -> Topology:
    """Pods of one workload stay together as their pod sets say."""
    for one in wanted:
        if one.pod_set.required_topology:
            return Topology(required=one.pod_set.required_topology)
    preferred = dict.fromkeys(
        one.pod_set.preferred_topology for one in wanted if one.pod_set.preferred_topology
    )
    return Topology(preferred=tuple(name for name in preferred if name))


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
