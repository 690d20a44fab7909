"""Who holds what on each node: the workloads with quota in the order of their ranks, with running
totals of what they hold. Two bisections tell how many of them have to leave at least before a
request can fit there. Renewed only for nodes that changed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import GpuRoom, NodeRoom, Share, Stock
from queuecontroller.scheduler.preemption.candidates import Candidates
from queuecontroller.scheduler.preemption.room import SearchBudget
from queuecontroller.scheduler.quota.holders import Rank

NEVER: Final = 1 << 30
"""Later than everybody's place in an order."""
_RENEWAL_STEPS: Final = 12
_FREELY: Final = -1
"""Nobody has to go."""
_TOO_MUCH: Final = 1 << 80
Shape = tuple[int, int, int]
"""GPUs, memory and time of each."""
_SHAPES_KEPT: Final = 64
"""Answers kept for each node; few sizes are asked for again and again."""


class Holder(NamedTuple):
    """Somebody with quota on a node, and what he holds there."""

    rank: Rank
    info: WorkloadInfo
    shares: tuple[Share, ...]


class _OnGpu(NamedTuple):
    """Those who hold a part of one GPU that gives shares."""

    room: GpuRoom
    memory_bytes: int
    share_ppm: int
    """Free by now."""
    places: list[int]
    """Theirs in the order of the node."""
    bytes_until: list[int]
    ppm_until: list[int]


@dataclass(slots=True)
class NodeHolders:
    """All of them on one node. The answers are bounds: everybody is taken to go, for good."""

    version: int
    """The node's, when it was made."""
    all: list[Holder]
    """By rank."""
    queues: frozenset[str]
    bytes_until: list[int]
    """Memory that they hold together, up to each."""
    ppm_until: list[int]
    free_bytes: list[int]
    """On each GPU that gives shares, the most first."""
    free_ppm: list[int]
    gpus: list[GpuRoom]
    """Those that give shares."""
    _on_gpus: list[_OnGpu] | None = None
    _roughly: dict[Shape, int] = field(default_factory=dict)
    _tightly: dict[Hashable, int] = field(default_factory=dict)

    def roughly(self, shape: Shape) -> int:
        """A place in the order: nobody up to it gone, and there surely is no room. -1: there may be
        now; NEVER: there cannot be. By the totals of the node."""
        found = self._roughly.get(shape)
        if found is None:
            if len(self._roughly) >= _SHAPES_KEPT:
                self._roughly.clear()
            found = self._roughly[shape] = self._sum_up(shape)
        return found

    def _sum_up(self, shape: Shape) -> int:
        need_bytes, need_ppm = self._needs(shape)
        if not (need_bytes or need_ppm):
            return _FREELY
        at = max(bisect_left(self.bytes_until, need_bytes), bisect_left(self.ppm_until, need_ppm))
        return at if at < len(self.all) else NEVER

    def roughly_of(self, shape: Shape, queues: Collection[str]) -> int:
        """The same where only workloads of these ClusterQueues go."""
        need_bytes, need_ppm = self._needs(shape)
        if not (need_bytes or need_ppm):
            return _FREELY
        for at, one in enumerate(self.all):
            if one.info.cluster_queue in queues:
                for share in one.shares:
                    need_bytes -= share.memory_bytes
                    need_ppm -= share.share_ppm
                if need_bytes <= 0 and need_ppm <= 0:
                    return at
        return NEVER

    def _needs(self, shape: Shape) -> tuple[int, int]:
        """How much memory and time have to become free at least."""
        count, each, share_ppm = shape
        if len(self.gpus) < count:
            return _TOO_MUCH, 0
        return _missing(self.free_bytes, count, each), _missing(self.free_ppm, count, share_ppm)

    def tightly(self, request: GpuRequest, key: Hashable) -> int:
        """The same GPU by GPU: later, or as late. `key` is the same for the same answer, see
        `tight_key`."""
        found = self._tightly.get(key)
        if found is None:
            if len(self._tightly) >= _SHAPES_KEPT:
                self._tightly.clear()
            found = self._tightly[key] = self._look_closely(request)
        return found

    def known(self, key: Hashable) -> int | None:
        """The answer of `tightly`, if it was asked for before."""
        return self._tightly.get(key)

    def _look_closely(self, request: GpuRequest) -> int:
        if self._on_gpus is None:
            self._on_gpus = _by_gpu(self)
        share_ppm = request.share_ppm if request.hard else 0
        memory_bytes = request.memory_bytes
        picky = any(request.picks)
        places = []
        for room, free_bytes, free_ppm, in_order, bytes_until, ppm_until in self._on_gpus:
            gpu = room.gpu
            if picky and request.wants(gpu) is not None:
                continue
            at = _FREELY
            need = request.memory_on(gpu) if memory_bytes is None else memory_bytes
            if need > free_bytes:
                at = bisect_left(bytes_until, need - free_bytes)
            if share_ppm > free_ppm:
                at = max(at, bisect_left(ppm_until, share_ppm - free_ppm))
            if room.slots < 1:
                at = max(at, -room.slots)
            if at < 0:
                places.append(at)
            elif at < len(in_order):
                places.append(in_order[at])
        if len(places) < request.count:
            return NEVER
        places.sort()
        return places[request.count - 1]


def tight_key(request: GpuRequest) -> Hashable:
    """All that decides what `Stand.tightly` answers; compared sooner than the request."""
    return (
        request.count,
        request.memory_bytes,
        request.memory_ppm,
        request.share_ppm if request.hard else 0,
        request.picks,
    )


def _missing(free: Sequence[int], count: int, each: int) -> int:
    """`free` has the most first."""
    if free[count - 1] >= each:
        return 0
    missing = 0
    for at in range(count):
        if free[at] < each:
            missing += each - free[at]
    return missing


def _by_gpu(holders: NodeHolders) -> list[_OnGpu]:
    found = {
        gpu.gpu.uuid: _OnGpu(gpu, gpu.memory_bytes, gpu.share_ppm, [], [], [])
        for gpu in holders.gpus
    }
    for place, one in enumerate(holders.all):
        for share in one.shares:
            on = found.get(share.uuid)
            if on is not None:
                on.places.append(place)
                on.bytes_until.append(share.memory_bytes + (on.bytes_until or (0,))[-1])
                on.ppm_until.append(share.share_ppm + (on.ppm_until or (0,))[-1])
    return list(found.values())


class HoldersByNode:
    """Of all nodes; kept between questions."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._of: dict[str, NodeHolders] = {}

    def moved(self, key: WorkloadKey) -> None:
        """It got or lost its quota, or its rank changed."""
        for held in self._stock.holdings(key):
            self._of.pop(held.node, None)

    def at(self, room: NodeRoom, candidates: Candidates, budget: SearchBudget) -> NodeHolders:
        """Raises SearchDeferred, with those renewed so far kept."""
        found = self._of.get(room.name)
        if found is None or found.version != room.version:
            budget.pause()
            budget.take(_RENEWAL_STEPS)
            if len(self._of) > len(self._stock.nodes):
                self._of = {
                    name: one for name, one in self._of.items() if name in self._stock.nodes
                }
            found = self._of[room.name] = self._look(room, candidates)
        return found

    def _look(self, room: NodeRoom, candidates: Candidates) -> NodeHolders:
        everyone = []
        for owner, shares in self._stock.shares_at(room.name).items():
            ranked = candidates.ranked_of(owner)
            if ranked is not None:
                everyone.append(Holder(*ranked, shares))
        everyone.sort(key=_by_rank)
        memory_bytes = share_ppm = 0
        bytes_until, ppm_until = [], []
        for one in everyone:
            for share in one.shares:
                memory_bytes += share.memory_bytes
                share_ppm += share.share_ppm
            bytes_until.append(memory_bytes)
            ppm_until.append(share_ppm)
        gpus = [gpu for gpu in room.gpus.values() if gpu.gives_shares]
        return NodeHolders(
            room.version,
            everyone,
            frozenset([one.info.cluster_queue for one in everyone]),
            bytes_until,
            ppm_until,
            sorted([gpu.memory_bytes if gpu.memory_bytes > 0 else 0 for gpu in gpus], reverse=True),
            sorted([gpu.share_ppm if gpu.share_ppm > 0 else 0 for gpu in gpus], reverse=True),
            gpus,
        )


def _by_rank(one: Holder) -> Rank:
    return one.rank
