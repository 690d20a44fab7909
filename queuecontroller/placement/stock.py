"""What is free: the nodes' reports less what is held, indexed so that a choice looks at few nodes.

Every change is a hold or its release; releasing restores exactly what was there, which makes a
what-if two calls. The index sorts nodes by the room on their fullest-but-sufficient GPUs: for 1, 2,
4 and 8 GPUs, the most memory that so many GPUs of the node have free each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from queuecontroller.placement.capacity import TAKES_WORK, GpuCapacity, NodeCapacity

SIZES: Final = (1, 2, 4, 8)


class Share(NamedTuple):
    """A part of one GPU."""

    uuid: str
    memory_bytes: int
    share_ppm: int
    """0: a weight only, nothing of the promised time."""
    alone: bool = False
    """Its holder wants no company."""


@dataclass(slots=True)
class GpuRoom:
    gpu: GpuCapacity
    memory_bytes: int
    share_ppm: int
    slots: int
    holders: int = 0
    """Shares of ours, and 1 for anything that is not ours."""
    alone: bool = False

    @property
    def usable(self) -> bool:
        return self.slots > 0 and not self.alone and self.gpu.health in TAKES_WORK


@dataclass(slots=True)
class NodeRoom:
    name: str
    capacity: NodeCapacity
    gpus: dict[str, GpuRoom]
    keys: tuple[int, ...] = (0,) * len(SIZES)
    best_share_ppm: int = 0

    def summarise(self) -> None:
        rooms = sorted((r.memory_bytes for r in self.gpus.values() if r.usable), reverse=True)
        self.keys = tuple(rooms[n - 1] if len(rooms) >= n else -1 for n in SIZES)
        self.best_share_ppm = max((r.share_ppm for r in self.gpus.values() if r.usable), default=0)


@dataclass(frozen=True, slots=True)
class _Held:
    node: str
    shares: tuple[Share, ...]


@dataclass(slots=True)
class Stock:
    nodes: dict[str, NodeRoom] = field(default_factory=dict)
    _held: dict[Hashable, _Held] = field(default_factory=dict)
    _of_node: dict[str, set[Hashable]] = field(default_factory=dict)
    _index: tuple[list[tuple[int, str]], ...] = field(
        default_factory=lambda: tuple([] for _ in SIZES)
    )

    # --- what the nodes say ---

    def report(self, name: str, capacity: NodeCapacity) -> None:
        """A node's whole report; what is held there stays held."""
        known = self.nodes.get(name)
        if known is not None and known.capacity == capacity:
            return
        self.forget(name)
        room = NodeRoom(name, capacity, {})
        for gpu in capacity.gpus:
            outside = gpu.outside_memory_bytes or gpu.outside_share_ppm or gpu.outside_slots
            room.gpus[gpu.uuid] = GpuRoom(
                gpu,
                gpu.memory_bytes - gpu.outside_memory_bytes,
                gpu.share_ppm - gpu.outside_share_ppm,
                gpu.slots - gpu.outside_slots,
                1 if outside else 0,
            )
        self.nodes[name] = room
        for key in self._of_node.get(name, ()):
            _take(room, self._held[key].shares, 1)
        self._enter(room)

    def forget(self, name: str) -> None:
        """The node is gone; what it holds counts again when it comes back."""
        room = self.nodes.pop(name, None)
        if room is not None:
            self._leave(room)

    # --- what is given away ---

    def hold(self, key: Hashable, node: str, shares: Sequence[Share]) -> None:
        if key in self._held:
            raise ValueError(f"{key!r} is held already")
        self._held[key] = _Held(node, tuple(shares))
        self._of_node.setdefault(node, set()).add(key)
        self._change(node, shares, 1)

    def release(self, key: Hashable) -> None:
        held = self._held.pop(key)
        self._of_node[held.node].discard(key)
        self._change(held.node, held.shares, -1)

    def held(self) -> dict[Hashable, tuple[str, tuple[Share, ...]]]:
        return {key: (held.node, held.shares) for key, held in self._held.items()}

    def _change(self, node: str, shares: Sequence[Share], sign: int) -> None:
        room = self.nodes.get(node)
        if room is None:
            return
        self._leave(room)
        _take(room, shares, sign)
        self._enter(room)

    # --- the index ---

    def with_room(self, gpus: int, memory_bytes: int, emptiest_first: bool) -> Iterator[NodeRoom]:
        """Nodes that may have so many GPUs with so much memory free each, in order of room."""
        size = max(i for i, n in enumerate(SIZES) if n <= max(1, gpus))
        index = self._index[size]
        first = bisect_left(index, (memory_bytes, ""))
        order = range(len(index) - 1, first - 1, -1) if emptiest_first else range(first, len(index))
        for at in order:
            yield self.nodes[index[at][1]]

    def _enter(self, room: NodeRoom) -> None:
        room.summarise()
        for index, key in zip(self._index, room.keys, strict=True):
            insort(index, (key, room.name))

    def _leave(self, room: NodeRoom) -> None:
        for index, key in zip(self._index, room.keys, strict=True):
            del index[bisect_left(index, (key, room.name))]


def _take(room: NodeRoom, shares: Sequence[Share], sign: int) -> None:
    for share in shares:
        gpu = room.gpus.get(share.uuid)
        if gpu is None:  # the card is gone, its work is not yet
            continue
        gpu.memory_bytes -= sign * share.memory_bytes
        gpu.share_ppm -= sign * share.share_ppm
        gpu.slots -= sign
        gpu.holders += sign
        if share.alone:
            gpu.alone = sign > 0
