"""Consolidation: the cheapest set of moves after which a request fits that fits nowhere now.

A move takes one running pod from its GPUs to others that have room for it. Only the free room
matters here: quota is unchanged by moves. Nothing is changed: the result is a plan.
A request of one GPU needs no more than the pods of one GPU to leave, so only those are combined.

Sets of pods on one node are tried in the order of their cost, over all nodes at once. A set is a
solution if the request fits once its pods have left, and every pod of it then fits somewhere else.
The first solution is the cheapest of those whose pods are on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from queuecontroller.scheduler.placement.choose import (
    Chosen,
    NoPlace,
    PodToPlace,
    Topology,
    place,
    why_infeasible,
)
from queuecontroller.scheduler.placement.preemption.estimate import NodeEstimate
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock

MOVE_COST_MIB: Final = 1 << 10
"""Cost of a move besides its memory, in MiB, so that few moves are preferred to many small ones."""
HOUR_NS: Final = 3_600_000_000_000
MAX_NODES: Final = 32
"""Nodes that are looked at for one plan, those with the most free memory."""
MAX_MOVES: Final = 4
"""Moves of one plan; more interrupt more work than they are worth."""
MAX_TRIALS: Final = 100
"""Sets of pods that are placed on trial for one plan."""
MAX_STEPS: Final = 2_000
"""Sets of pods that are looked at for one plan."""


def cost_mib(memory_bytes: int, ran_ns: int) -> int:
    """Cost of a move, in MiB of GPU memory: a fixed part, and its memory once for the move and once
    for each hour that it ran, which is lost where it starts again."""
    hours = max(0, ran_ns) / HOUR_NS
    return MOVE_COST_MIB + int((memory_bytes >> 20) * (1 + hours))


@dataclass(frozen=True, slots=True)
class Movable:
    """A running pod that may be moved: the only one of its owner."""

    owner: Hashable
    """Owner of the holding in the stock."""
    pod: PodToPlace
    """Its request, without the place where it is."""
    cost: int
    """Cost of the move in MiB of GPU memory; positive."""
    group: str = ""
    """Owner of the work: with `one_per_group` a plan moves at most one pod of each."""


@dataclass(frozen=True, slots=True)
class Move:
    owner: Hashable
    node: str
    """Node where it is."""
    shares: tuple[Share, ...]
    to: Chosen
    cost: int


@dataclass(frozen=True, slots=True)
class Plan:
    places: tuple[Chosen, ...]
    """Places of the request after the moves."""
    moves: tuple[Move, ...]

    @property
    def cost(self) -> int:
        return sum(one.cost for one in self.moves)


def consolidate(
    stock: Stock,
    pods: Sequence[PodToPlace],
    movable: Callable[[Hashable], Movable | None],
    topology: Topology | None = None,
    max_cost: int | None = None,
    one_per_group: bool = False,
) -> Plan | None:
    """The cheapest plan after which all of `pods` fit; None if there is none within the limits.
    `movable` returns None for an owner that may not be moved or has several pods. The stock is as
    before afterwards."""
    search = _Search(stock, pods, movable, topology or Topology(), max_cost, one_per_group)
    return search.find()


@dataclass(slots=True)
class _Search:
    stock: Stock
    pods: Sequence[PodToPlace]
    movable: Callable[[Hashable], Movable | None]
    topology: Topology
    max_cost: int | None
    one_per_group: bool
    _movers: dict[Hashable, Movable] = field(default_factory=dict)

    def find(self) -> Plan | None:
        for owners in islice(self._sets(), MAX_TRIALS):
            plan = self._plan(owners)
            if plan is not None:
                return plan
        return None

    def _sets(self) -> Iterator[frozenset[Hashable]]:
        """Sets of pods whose end may make room for the request, the cheapest first."""
        queue: list[tuple[int, int, int, tuple[int, ...]]] = []
        lines: list[tuple[list[NodeEstimate], list[Movable]]] = []
        rooms = sorted(self.stock.nodes.values(), key=lambda room: -room.free_bytes)
        for room in rooms[:MAX_NODES]:
            there = self._movables_on(room)
            suitable = [pod for pod in self.pods if why_infeasible(room, pod, None) is None]
            if there and suitable:
                estimates = [NodeEstimate(room, pod) for pod in suitable]
                lines += [(estimates, few) for few in self._together(room, there)]
        for number, (_, there) in enumerate(lines):
            heappush(queue, (there[0].cost, 1, number, (0,)))
        steps = 0
        while queue and steps < MAX_STEPS:
            steps += 1
            cost, size, number, chosen = heappop(queue)
            if self.max_cost is not None and cost > self.max_cost:
                return
            estimates, there = lines[number]
            # Every set is reached once: the last pod is replaced by the next, or the next is added.
            after = chosen[-1] + 1
            if after < len(there):
                step = there[after].cost - there[after - 1].cost
                heappush(queue, (cost + step, size, number, (*chosen[:-1], after)))
                if size < MAX_MOVES:
                    heappush(queue, (cost + there[after].cost, size + 1, number, (*chosen, after)))
            leaving = [there[at] for at in chosen]
            if self.one_per_group and len({one.group for one in leaving}) < size:
                continue
            if any(self._may_help(estimate, leaving) for estimate in estimates):
                yield frozenset(one.owner for one in leaving)

    def _together(self, room: NodeRoom, there: Sequence[Movable]) -> list[list[Movable]]:
        """Pods of which a solution may consist: for a request of one GPU those on one GPU, else all
        on the node."""
        if sum(pod.request.count for pod in self.pods) > 1:
            return [list(there)]
        on_gpus: dict[str, list[Movable]] = {}
        for one in there:
            for uuid in {share.uuid for share in self.stock.holdings(one.owner)[0].shares}:
                on_gpus.setdefault(uuid, []).append(one)
        return list(on_gpus.values())

    def _movables_on(self, room: NodeRoom) -> list[Movable]:
        """Movable pods on a node, the cheapest first; those on GPUs that the request does not take
        are left out."""
        found = []
        for owner, shares in self.stock.shares_at(room.name).items():
            if not any(self._takes(room, share.uuid) for share in shares):
                continue
            movable = self.movable(owner)
            if movable is not None and len(self.stock.holdings(owner)) == 1:
                self._movers[owner] = movable
                found.append(movable)
        return sorted(found, key=lambda one: (one.cost, str(one.owner)))

    def _takes(self, room: NodeRoom, uuid: str) -> bool:
        gpu = room.gpus.get(uuid)
        return gpu is not None and any(pod.request.wants(gpu.gpu) is None for pod in self.pods)

    def _may_help(self, estimate: NodeEstimate, leaving: Collection[Movable]) -> bool:
        """False if the node has no room for the pod even without these pods."""
        shares = [s for one in leaving for s in self.stock.holdings(one.owner)[0].shares]
        estimate.leave(shares, False)
        found = estimate.takes(1)
        estimate.come_back(shares, False)
        return found

    def _plan(self, owners: frozenset[Hashable]) -> Plan | None:
        movers = [self._movers[owner] for owner in owners]
        held = {one.owner: self.stock.holdings(one.owner)[0] for one in movers}
        undo = self.stock.without(owners)
        trial = self.stock.trial()
        try:
            found = place(self.stock, self.pods, self.topology)
            if isinstance(found, NoPlace):
                return None
            for one in found:
                trial.hold(one.node, one.shares)
            moves = []
            for mover in sorted(movers, key=_large_first):
                to = place(self.stock, [mover.pod])
                if isinstance(to, NoPlace):
                    return None
                trial.hold(to[0].node, to[0].shares)
                before = held[mover.owner]
                if (to[0].node, to[0].shares) != (before.node, before.shares):
                    moves.append(Move(mover.owner, before.node, before.shares, to[0], mover.cost))
            return Plan(tuple(found), tuple(moves))
        finally:
            trial.undo()
            undo()


def _large_first(one: Movable) -> tuple[int, int, str]:
    request = one.pod.request
    memory = request.memory_bytes if request.memory_bytes is not None else 1 << 62
    return (-request.count, -memory, str(one.owner))
