"""Holders of each node: the workloads with quota in the order of their ranks, with running totals
of what they hold. Two bisections give the least number of them that have to leave before a request
can fit there. Renewed only for nodes that changed."""

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
"""A position later than any other in an order."""
_RENEWAL_STEPS: Final = 12
_FREELY: Final = -1
"""Position that means no workload has to leave."""
_TOO_MUCH: Final = 1 << 80
Shape = tuple[int, int, int]
"""Number of GPUs, and the memory and time of each."""
_SHAPES_KEPT: Final = 64
"""Number of answers cached for each node; a few sizes are requested again and again."""


class Holder(NamedTuple):
    """A workload with quota on a node, and what it holds there."""

    rank: Rank
    info: WorkloadInfo
    shares: tuple[Share, ...]


class _OnGpu(NamedTuple):
    """Holders of a part of one GPU that gives shares."""

    room: GpuRoom
    memory_bytes: int
    share_ppm: int
    """Time that is free already."""
    places: list[int]
    """Positions of the holders in the order of the node."""
    bytes_until: list[int]
    ppm_until: list[int]


@dataclass(slots=True)
class NodeHolders:
    """All holders on one node. The answers are bounds: all holders are assumed to be removable."""

    version: int
    """The node's version when this was made."""
    all: list[Holder]
    """Holders by rank."""
    queues: frozenset[str]
    bytes_until: list[int]
    """Sum of memory held, up to each holder."""
    ppm_until: list[int]
    free_bytes: list[int]
    """Free memory of each GPU that gives shares, the most first."""
    free_ppm: list[int]
    gpus: list[GpuRoom]
    """GPUs that give shares."""
    _on_gpus: list[_OnGpu] | None = None
    _roughly: dict[Shape, int] = field(default_factory=dict)
    _tightly: dict[Hashable, int] = field(default_factory=dict)

    def roughly(self, shape: Shape) -> int:
        """The first position in the order such that there may be room once all holders up to it
        have left. -1: there may be room now; NEVER: there cannot be. Computed from the totals of
        the node."""
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
        """Like `roughly`, where only workloads of these ClusterQueues may leave."""
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
        """The least memory and time that have to become free."""
        count, each, share_ppm = shape
        if len(self.gpus) < count:
            return _TOO_MUCH, 0
        return _missing(self.free_bytes, count, each), _missing(self.free_ppm, count, share_ppm)

    def tightly(self, request: GpuRequest, key: Hashable) -> int:
        """Like `roughly`, GPU by GPU: the same position or a later one. `key` is equal for equal
        answers, see `tight_key`."""
        found = self._tightly.get(key)
        if found is None:
            if len(self._tightly) >= _SHAPES_KEPT:
                self._tightly.clear()
            found = self._tightly[key] = self._look_closely(request)
        return found

    def known(self, key: Hashable) -> int | None:
        """The cached answer of `tightly`; None without one."""
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
    """Everything that decides `NodeHolders.tightly`; cheaper to compare than the request."""
    return (
        request.count,
        request.memory_bytes,
        request.memory_ppm,
        request.share_ppm if request.hard else 0,
        request.picks,
    )


def _missing(free: Sequence[int], count: int, each: int) -> int:
    """Amount missing on the `count` GPUs with the most free; `free` is in descending order."""
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
    """Holders of all nodes, cached between searches."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._of: dict[str, NodeHolders] = {}

    def moved(self, key: WorkloadKey) -> None:
        """Record that a workload got or lost its quota, or that its rank changed."""
        for held in self._stock.holdings(key):
            self._of.pop(held.node, None)

    def at(self, room: NodeRoom, candidates: Candidates, budget: SearchBudget) -> NodeHolders:
        """Holders at a node. Raises SearchDeferred; those renewed so far are cached."""
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
        holders = []
        for owner, shares in self._stock.shares_at(room.name).items():
            ranked = candidates.ranked_of(owner)
            if ranked is not None:
                holders.append(Holder(*ranked, shares))
        holders.sort(key=_by_rank)
        memory_bytes = share_ppm = 0
        bytes_until, ppm_until = [], []
        for one in holders:
            for share in one.shares:
                memory_bytes += share.memory_bytes
                share_ppm += share.share_ppm
            bytes_until.append(memory_bytes)
            ppm_until.append(share_ppm)
        gpus = [gpu for gpu in room.gpus.values() if gpu.gives_shares]
        return NodeHolders(
            room.version,
            holders,
            frozenset([one.info.cluster_queue for one in holders]),
            bytes_until,
            ppm_until,
            sorted([gpu.memory_bytes if gpu.memory_bytes > 0 else 0 for gpu in gpus], reverse=True),
            sorted([gpu.share_ppm if gpu.share_ppm > 0 else 0 for gpu in gpus], reverse=True),
            gpus,
        )


def _by_rank(one: Holder) -> Rank:
    return one.rank
