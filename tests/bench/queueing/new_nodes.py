"""Nodes bought for pending shares: the mixes of `consolidation` over a day that begins without a node, shares packed beside whole cards.

Time is virtual, and the mixes are made from their seeds: the figures are the same on every machine. A node takes three minutes to come
and goes when it was empty for ten, as autoscalers have it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from queuecontroller.cli.simulate.trace import NS_PER_S, Arrival
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.scheduler.placement.choose import PodToPlace
from queuecontroller.scheduler.placement.new_nodes import (
    NodeTemplate,
    PendingPods,
    new_nodes,
    whole_cards,
)
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import Stock
from tests.bench.entries import Entry, entry
from tests.bench.queueing.consolidation import GIB, GPUS, MEMORY_GIB, MIXES, Mix, arrivals

COMES_S = 180
EMPTY_S = 600
MOST = 100
TEMPLATE = NodeTemplate(
    "h100",
    NodeCapacity(tuple(GpuCapacity(f"T{i}", i, "H100", MEMORY_GIB * GIB) for i in range(GPUS))),
)


def request_of(arrival: Arrival, whole: bool) -> GpuRequest:
    memory = arrival.requests.get("nvidia.com/gpumem")
    if whole or memory is None:
        return whole_cards(GpuRequest())
    share_ppm = arrival.requests["nvidia.com/gpucores"] * 10_000
    return GpuRequest(1, memory << 20, share_ppm=share_ppm)


@dataclass
class Day:
    """One mix on nodes that are bought when they are needed."""

    whole: bool
    """True: every share takes a whole card."""
    stock: Stock = field(default_factory=Stock)
    bought: int = 0
    node_ns: int = 0
    """Time for which nodes were there."""
    waits_ns: list[int] = field(default_factory=list)
    _coming: int = 0
    _since_ns: dict[str, int] = field(default_factory=dict)
    _empty_ns: dict[str, int] = field(default_factory=dict)
    _waiting: list[tuple[Arrival, PendingPods]] = field(default_factory=list)
    _events: list[tuple[int, int, str, object]] = field(default_factory=list)
    _order: int = 0

    def play(self, mix: Mix) -> Day:
        for one in arrivals(mix):
            self._at(one.at_ns, "arrives", one)
        now_ns = 0
        while self._events:
            now_ns, _, what, about = heapq.heappop(self._events)
            if what == "arrives":
                assert isinstance(about, Arrival)
                pod = PodToPlace("", request_of(about, self.whole))
                self._waiting.append((about, PendingPods(about.name, (pod,))))
            elif what == "ends":
                node = self.stock.release(about).node
                if not self.stock.held_at(node):
                    self._empty_ns[node] = now_ns
                    self._at(now_ns + EMPTY_S * NS_PER_S, "goes", node)
            elif what == "comes":
                self._add(now_ns)
            else:
                self._remove(str(about), now_ns)
            self._place(now_ns)
        return self

    def _at(self, at_ns: int, what: str, about: object) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, what, about))

    def _add(self, now_ns: int) -> None:
        self._coming -= 1
        name, capacity = TEMPLATE.node(self.bought)
        name = name.replace("/", "-")
        self.bought += 1
        self.stock.report(name, capacity)
        self._since_ns[name] = self._empty_ns[name] = now_ns
        self._at(now_ns + EMPTY_S * NS_PER_S, "goes", name)

    def _remove(self, name: str, now_ns: int) -> None:
        empty_ns = self._empty_ns.get(name)
        if empty_ns is None or now_ns - empty_ns < EMPTY_S * NS_PER_S:
            return
        self.stock.forget(name)
        del self._empty_ns[name]
        self.node_ns += now_ns - self._since_ns.pop(name)

    def _place(self, now_ns: int) -> None:
        left = []
        for arrival, pending in self._waiting:
            found = pending.fit(self.stock, self.whole, {})
            if isinstance(found, str):
                left.append((arrival, pending))
                continue
            [place] = found
            self.stock.hold(arrival.name, place.node, place.shares)
            self._empty_ns.pop(place.node, None)
            self.waits_ns.append(now_ns - arrival.at_ns)
            self._at(now_ns + arrival.runs_ns, "ends", arrival.name)
        self._waiting = left
        if left:
            needed = new_nodes(self.stock, [one for _, one in left], [TEMPLATE], MOST).total
            for _ in range(needed - self._coming):
                self._at(now_ns + COMES_S * NS_PER_S, "comes", None)
                self._coming += 1


def entries(mix: Mix) -> Iterator[Entry]:
    shared, whole = (Day(one).play(mix) for one in (False, True))
    name = f"new_nodes_{mix.name}"
    yield entry(
        f"{name}_bought",
        "nodes/day",
        [shared.bought],
        baseline=whole.bought,
        ratio=shared.bought / whole.bought,
        target="less than with whole cards",
    )
    hours = [one.node_ns / NS_PER_S / 3600 for one in (shared, whole)]
    yield entry(
        f"{name}_hours",
        "h/day",
        [hours[0]],
        baseline=hours[1],
        ratio=hours[0] / hours[1],
        target="less than with whole cards",
    )
    waits = [sorted(one.waits_ns)[len(one.waits_ns) * 95 // 100] for one in (shared, whole)]
    yield entry(f"{name}_wait_p95_s", "s", [waits[0] / NS_PER_S], baseline=waits[1] / NS_PER_S)


def run(quick: bool = False) -> list[Entry]:
    made: list[Entry] = []
    for mix in MIXES[:1] if quick else MIXES:
        made += entries(mix)
    return made
