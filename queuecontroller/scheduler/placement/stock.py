"""Free resources: the nodes' reports less what is held.

Every change is a hold or its release, and releasing restores exactly what was there; a what-if is
`without`, whose undo puts everything back. `index` keeps the nodes in order of room, so that a
choice evaluates few of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from queuecontroller.scheduler.placement.capacity import TAKES_WORK, GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.mig import Span, most
from queuecontroller.scheduler.placement.node_index import NodeIndex, NodeKeys, Pool, level_of


class Share(NamedTuple):
    """A part of one GPU."""

    uuid: str
    memory_bytes: int
    share_ppm: int
    """Guaranteed time in ppm; 0: a weight only."""
    alone: bool = False
    """Exclusive: nothing else may be placed on this GPU."""
    mig: str = ""
    """Profile and place of the MIG instance, if it is one."""
    span: Span | None = None


@dataclass(slots=True)
class GpuRoom:
    gpu: GpuCapacity
    memory_bytes: int
    share_ppm: int
    slots: int
    holders: int = 0
    """Number of the queue's shares, and 1 for any use outside the queue."""
    alone: int = 0
    """Number of exclusive shares among them."""
    spans: list[Span] = field(default_factory=list)
    """Memory slices taken by MIG instances."""
    gives_shares: bool = field(init=False)
    """True if the GPU gives shares; one in MIG mode gives instances instead."""

    def __post_init__(self) -> None:
        self.gives_shares = not self.gpu.mig_enabled and self.gpu.health in TAKES_WORK

    def mig_free(self, profile: str) -> int:
        """Number of instances of the profile that still fit."""
        if not self.gpu.mig_enabled or self.gpu.health not in TAKES_WORK:
            return 0
        return most(self.gpu.mig_spans(profile), self.spans)


@dataclass(slots=True)
class NodeRoom:
    name: str
    capacity: NodeCapacity
    gpus: dict[str, GpuRoom]
    pool: Pool = ()
    keys: NodeKeys = ()
    version: int = 0
    """A number that differs after every change and is never that of another node."""
    best_share_ppm: int = 0
    free_bytes: int = 0
    mig: dict[str, int] = field(default_factory=dict)
    """Number of instances that still fit, by profile."""
    _used_ppm: int | None = field(default=None, compare=False)
    """None: to be computed. Here and not in a table by name, because all nodes are ranked for each
    pod, and a table of 5,000 nodes is no longer in the processor's cache when the next pod comes.
    """

    @property
    def used_ppm(self) -> int:
        """Usage of the GPUs in parts per million, by the scarcer of memory and time on each."""
        if self._used_ppm is None:
            total = 0
            for gpu in self.gpus.values():
                whole = gpu.gpu.memory_bytes or 1
                memory = 1_000_000 - max(0, gpu.memory_bytes) * 1_000_000 // whole
                time = 1_000_000 - max(0, gpu.share_ppm)
                total += max(memory, time)
            self._used_ppm = total // (len(self.gpus) or 1)
        return self._used_ppm

    def summarise(self) -> None:
        self.version = next(_VERSIONS)
        self._used_ppm = None
        usable = []
        some_in_mig_mode = False
        self.best_share_ppm = self.free_bytes = 0
        for room in self.gpus.values():
            some_in_mig_mode |= room.gpu.mig_enabled
            if room.gives_shares and room.slots > 0 and not room.alone:
                usable.append((room.memory_bytes, room.share_ppm, room.holders == 0))
                if len(usable) == 1 or room.share_ppm > self.best_share_ppm:
                    self.best_share_ppm = room.share_ppm
                if room.memory_bytes > 0:
                    self.free_bytes += room.memory_bytes
        self.keys = level_of(usable)
        if some_in_mig_mode:
            profiles = {one.name for r in self.gpus.values() for one in r.gpu.mig_profiles}
            self.mig = {
                name: sum(room.mig_free(name) for room in self.gpus.values()) for name in profiles
            }


class Holding(NamedTuple):
    owner: Hashable
    """The workload; all its holds are released together."""
    node: str
    shares: tuple[Share, ...]


_VERSIONS = itertools.count(1)
Undo = Callable[[], None]
Owner = TypeVar("Owner", bound=Hashable)


@dataclass(slots=True)
class Trial:
    """Holds and added nodes that `undo` removes; `freed` and `changes` are then as before."""

    _stock: Stock
    _before: tuple[int, int]
    _keys: list[object] = field(default_factory=list)
    _nodes: list[str] = field(default_factory=list)

    def hold(self, node: str, shares: Sequence[Share]) -> None:
        self._keys.append(key := object())
        self._stock.hold(key, node, shares)

    def add_node(self, name: str, capacity: NodeCapacity) -> None:
        self._nodes.append(name)
        self._stock.report(name, capacity)

    def undo(self) -> None:
        for key in self._keys:
            self._stock.release(key)
        for name in self._nodes:
            self._stock.forget(name)
        self._stock.freed, self._stock.changes = self._before


@dataclass(slots=True)
class Stock:
    nodes: dict[str, NodeRoom] = field(default_factory=dict)
    index: NodeIndex = field(default_factory=NodeIndex)
    freed: int = 0
    """Counter that grows when a request may fit that did not."""
    changes: int = 0
    """Counter that grows with every change."""
    _held: dict[Hashable, Holding] = field(default_factory=dict)
    _of_node: dict[str, set[Hashable]] = field(default_factory=dict)
    _of_owner: dict[Hashable, dict[Hashable, None]] = field(default_factory=dict)
    _node_of: dict[str, str] = field(default_factory=dict)
    """Node names by GPU."""
    _with_mig: dict[str, NodeRoom] = field(default_factory=dict)
    """Nodes with GPUs in MIG mode."""

    # --- what the nodes say ---

    def report(self, name: str, capacity: NodeCapacity) -> None:
        """Apply a node's complete report; what is held there stays held."""
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
                spans=list(gpu.outside_spans),
            )
            self._node_of[gpu.uuid] = name
        room.pool = tuple(sorted({(gpu.type, gpu.memory_bytes) for gpu in capacity.gpus}))
        self.nodes[name] = room
        for key in self._of_node.get(name, ()):
            _take(room, self._held[key].shares, 1)
        room.summarise()
        self.index.enter(room.pool, name, room.keys)
        if room.mig:
            self._with_mig[name] = room
        self._note(freed=True)

    def forget(self, name: str) -> None:
        """Remove a node; what it holds counts again when the node is reported again."""
        room = self.nodes.pop(name, None)
        if room is None:
            return
        self.index.leave(room.pool, name, room.keys)
        for uuid in room.gpus:
            if self._node_of.get(uuid) == name:
                del self._node_of[uuid]
        self._with_mig.pop(name, None)
        self._note(freed=False)

    def note_freed(self) -> None:
        """Record that an obstacle which is not counted here is gone."""
        self._note(freed=True)

    def node_of(self, uuid: str) -> NodeRoom | None:
        name = self._node_of.get(uuid)
        return self.nodes.get(name) if name is not None else None

    # --- what is given away ---

    def hold(
        self, key: Hashable, node: str, shares: Sequence[Share], owner: Hashable = None
    ) -> None:
        """Hold shares under a key. Raises ValueError if the key holds something already."""
        if key in self._held:
            raise ValueError(f"{key!r} is held already")
        holder = key if owner is None else owner
        self._held[key] = Holding(holder, node, tuple(shares))
        self._of_node.setdefault(node, set()).add(key)
        self._of_owner.setdefault(holder, {})[key] = None
        self._change(node, shares, 1)
        self._note(freed=False)

    def release(self, key: Hashable) -> Holding:
        held = self._held.pop(key)
        self._of_node[held.node].discard(key)
        keys = self._of_owner[held.owner]
        del keys[key]
        if not keys:
            del self._of_owner[held.owner]
        self._change(held.node, held.shares, -1)
        self._note(freed=True)
        return held

    def rename(self, before: Hashable, key: Hashable) -> None:
        """Move a hold to another key. Raises KeyError, ValueError."""
        if key in self._held:
            raise ValueError(f"{key!r} is held already")
        held = self._held[key] = self._held.pop(before)
        keys = self._of_node[held.node]
        keys.discard(before)
        keys.add(key)
        mine = self._of_owner[held.owner]
        del mine[before]
        mine[key] = None

    def holdings(self, owner: Hashable) -> list[Holding]:
        return [self._held[key] for key in self._of_owner.get(owner, ())]

    def held_at(self, node: str) -> list[tuple[Hashable, Holding]]:
        """Holdings on the node, with their keys."""
        return [(key, self._held[key]) for key in self._of_node.get(node, ())]

    def shares_at(self, node: str) -> dict[Hashable, tuple[Share, ...]]:
        """Shares held on the node, by owner."""
        found: dict[Hashable, tuple[Share, ...]] = {}
        for key in self._of_node.get(node, ()):
            owner, _, shares = self._held[key]
            before = found.get(owner)
            found[owner] = shares if before is None else before + shares
        return found

    def owners_on(self, owners: Collection[Owner], uuids: Collection[str]) -> set[Owner]:
        """Owners, among these, that hold a part of any of these GPUs."""
        wanted = set(uuids)
        return {
            owner
            for owner in owners
            for key in self._of_owner.get(owner, ())
            if any(share.uuid in wanted for share in self._held[key].shares)
        }

    # --- what if ---

    def without(
        self,
        owners: Iterable[Hashable],
        keeps: Callable[[Any], bool] = lambda owner: False,
    ) -> Undo:
        """Remove these owners until the returned undo is called; everything done meanwhile must be
        undone before it. Owners for which `keeps` is True only stop computing and keep their memory
        and slots."""
        moved: dict[str, tuple[list[Share], list[Share]]] = {}
        for owner in owners:
            stays = keeps(owner)
            for key in self._of_owner.get(owner, ()):
                held = self._held[key]
                moved.setdefault(held.node, ([], []))[stays].extend(held.shares)
        before = (self.freed, self.changes)

        def shift(sign: int) -> None:
            for node, (whole, time_only) in moved.items():
                self._change(node, whole, sign, time_only)

        shift(-1)

        def undo() -> None:
            shift(1)
            self.freed, self.changes = before

        return undo

    def trial(self) -> Trial:
        return Trial(self, (self.freed, self.changes))

    # --- the index ---

    def _note(self, *, freed: bool) -> None:
        self.changes += 1
        self.freed += freed

    def _change(
        self, node: str, shares: Sequence[Share], sign: int, time_only: Sequence[Share] = ()
    ) -> None:
        room = self.nodes.get(node)
        if room is None:
            return
        _take(room, shares, sign)
        for share in time_only:
            if share.uuid in room.gpus:
                room.gpus[share.uuid].share_ppm -= sign * share.share_ppm
                room.gpus[share.uuid].alone -= sign * share.alone
        before = room.keys
        room.summarise()
        self.index.move(room.pool, node, before, room.keys)

    def with_room(
        self,
        gpus: int,
        least_bytes: Callable[[Pool], int | None],
        share_ppm: int,
        idle: bool,
        emptiest_first: bool,
    ) -> Iterator[NodeRoom]:
        """Nodes that may have so many GPUs with so much memory and time free each, in order of
        room; `least_bytes` gives the memory for a kind of GPUs, None if none of them is suitable.
        """
        for name in self.index.candidates(gpus, least_bytes, share_ppm, idle, emptiest_first):
            yield self.nodes[name]

    def with_mig(self) -> Collection[NodeRoom]:
        """Nodes with GPUs in MIG mode."""
        return self._with_mig.values()

    def with_instances(self, wanted: Counter[str], emptiest_first: bool) -> list[NodeRoom]:
        """Nodes on which so many MIG instances of each profile fit, each profile counted on its
        own, in order of room for them."""
        found = [
            (sum(room.mig.get(name, 0) for name in wanted), room.name)
            for room in self._with_mig.values()
            if all(room.mig.get(name, 0) >= count for name, count in wanted.items())
        ]
        return [self.nodes[name] for _, name in sorted(found, reverse=emptiest_first)]


def _take(room: NodeRoom, shares: Sequence[Share], sign: int) -> None:
    for share in shares:
        gpu = room.gpus.get(share.uuid)
        if gpu is None:  # the card is gone, its work is not yet
            continue
        if share.span is not None:
            if sign > 0:
                gpu.spans.append(share.span)
            else:
                gpu.spans.remove(share.span)
        gpu.memory_bytes -= sign * share.memory_bytes
        gpu.share_ppm -= sign * share.share_ppm
        gpu.slots -= sign
        if share.memory_bytes or share.share_ppm or share.alone or share.mig:
            gpu.holders += sign  # Otherwise the slot is taken, and the GPU is not used.
        gpu.alone += sign * share.alone


class Free(Protocol):
    """Free memory, time and slots of one GPU."""

    memory_bytes: int
    share_ppm: int
    slots: int
    holders: int
    alone: int


def parts_on(gpu: Free, memory_bytes: int, share_ppm: int, exclusive: bool) -> int:
    """Number of parts of so much memory and guaranteed time it can still give."""
    if gpu.alone > 0 or gpu.slots < 1 or gpu.memory_bytes < memory_bytes:
        return 0
    if exclusive:
        return int(gpu.holders <= 0 and not (share_ppm and gpu.share_ppm < share_ppm))
    times = gpu.slots
    if memory_bytes:
        times = min(times, gpu.memory_bytes // memory_bytes)
    if share_ppm:
        times = min(times, gpu.share_ppm // share_ppm)
    return max(0, times)
