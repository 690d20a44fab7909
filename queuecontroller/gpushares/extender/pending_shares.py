"""Pending pods with GPU shares as requests for new nodes: each pod is placed per container, as the
extender places it once there is room.

A pod that is placed on an imaginary node counts with its other requests, too, so that its CPUs are
there; amounts of resources that a node does not name are not limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuecontroller.gpushares.extender.pods import ContainerAsk, PodAsk
from queuecontroller.gpushares.extender.verdicts import place_on
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.choose import PodToPlace, rooms_for, why_infeasible
from queuecontroller.scheduler.placement.new_nodes import (
    NOTHING,
    Placed,
    Used,
    is_imaginary,
    size_of,
    whole_cards,
)
from queuecontroller.scheduler.placement.stock import NodeRoom, Stock

Rules = tuple[Hashable, ...]


class Terrain:
    """Labels, taints and free resources of nodes, for one look at all pending pods."""

    def __init__(self, facts: Callable[[str], NodeCapacity | None]) -> None:
        """`facts` returns labels, taints and what is free of other resources of a present node;
        None: no pod may go there."""
        self._facts = facts
        self._known: dict[str, NodeCapacity | None] = {}
        self._verdicts: dict[tuple[str, Rules], str | None] = {}

    def of(self, room: NodeRoom) -> NodeCapacity | None:
        if is_imaginary(room.name):
            return room.capacity
        if room.name not in self._known:
            self._known[room.name] = self._facts(room.name)
        return self._known[room.name]

    def why_infeasible(self, room: NodeRoom, pod: PodToPlace) -> str | None:
        rules: Rules = (pod.labels, pod.affinity, pod.tolerations)
        if (room.name, rules) not in self._verdicts:
            there = self.of(room)
            why: str | None = "takes no new pods"
            if there is not None:
                why = why_infeasible(NodeRoom(room.name, there, {}), pod, None)
            self._verdicts[room.name, rules] = why
        return self._verdicts[room.name, rules]


@dataclass(frozen=True, slots=True)
class EqualPods:
    """A number of equal pods."""

    ask: PodAsk
    rules: PodToPlace
    """Rules for their nodes; the rest of it is ignored."""
    count: int = 1
    other: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    """Resources besides GPUs that each of them takes."""

    @property
    def shape(self) -> Hashable:
        return self.ask.containers, self.rules, self.count, tuple(sorted(self.other.items()))


@dataclass(frozen=True, slots=True)
class PendingShares:
    key: str
    parts: tuple[EqualPods, ...]
    """Pods that are placed together."""
    terrain: Terrain
    priority: int = 0

    @property
    def pods(self) -> int:
        return sum(one.count for one in self.parts)

    @property
    def cards(self) -> int:
        return sum(
            one.count * sum(each.request.count for each in one.ask.containers if not each.before)
            for one in self.parts
        )

    @property
    def size(self) -> tuple[int, int, int]:
        return max(_size(one.ask.containers) for one in self.parts)

    @property
    def shape(self) -> Hashable:
        return tuple(one.shape for one in self.parts)

    def fit(self, stock: Stock, whole: bool, used: Used) -> Sequence[Placed] | str:
        trial = stock.trial()
        mine: dict[str, Counter[str]] = {}
        made: list[Placed] = []
        try:
            for part in sorted(self.parts, key=lambda one: _size(one.ask.containers), reverse=True):
                containers = _in_whole_cards(part.ask) if whole else part.ask.containers
                for _ in range(part.count):
                    found = self._place(stock, containers, part, (used, mine))
                    if isinstance(found, str):
                        return found
                    made.append(found)
                    if self.pods == 1:
                        break
                    trial.hold(found.node, found.shares)
                    mine.setdefault(found.node, Counter()).update(part.other)
        finally:
            trial.undo()
        return made

    def _place(
        self,
        stock: Stock,
        containers: tuple[ContainerAsk, ...],
        part: EqualPods,
        used: tuple[Used, Used],
    ) -> Placed | str:
        why = part.ask.wrong or f"no node has room for {part.ask.describe()}"
        if part.ask.wrong:
            return why
        for room in _candidates(stock, containers, part.rules):
            obstacle = self.terrain.why_infeasible(room, part.rules) or self._lacks(
                room, part.other, used
            )
            if obstacle:
                why = obstacle
                continue
            place = place_on(room, containers)
            if not isinstance(place, str):
                return Placed(room.name, place.held, part.other)
            why = place
        return why

    def _lacks(self, room: NodeRoom, other: Mapping[str, int], used: Iterable[Used]) -> str:
        """A resource besides GPUs of which the node has too little; empty if there is none."""
        there = self.terrain.of(room)
        free = there.other if there is not None else NOTHING
        for name, amount in other.items():
            taken = sum(one.get(room.name, NOTHING).get(name, 0) for one in used)
            if amount and name in free and amount + taken > free[name]:
                return f"has too little {name} for it"
        return ""


def _size(containers: tuple[ContainerAsk, ...]) -> tuple[int, int, int]:
    sizes = [size_of(one.request) for one in containers]
    return (
        sum(cards for cards, _, _ in sizes),
        max(memory for _, memory, _ in sizes),
        max(share for _, _, share in sizes),
    )


def _in_whole_cards(ask: PodAsk) -> tuple[ContainerAsk, ...]:
    return tuple(replace(one, request=whole_cards(one.request)) for one in ask.containers)


def _candidates(
    stock: Stock, containers: tuple[ContainerAsk, ...], rules: PodToPlace
) -> Iterator[NodeRoom]:
    """Nodes that may have room, the fullest first; those with room for the largest container."""
    [largest] = sorted(containers, key=lambda one: size_of(one.request))[-1:]
    yield from rooms_for(stock, replace(rules, request=largest.request))
