"""Consolidation: the cheapest set of moves after which a request fits that fits nowhere now.

A move takes one running pod from its GPUs to others that have room for it. Only the free room
matters here: quota is unchanged by moves. Nothing is changed: the result is a plan.
A request of one GPU needs no more than the pods of one GPU to leave, so only those are combined.
The request and the movers are placed on trial by the code that places them later (`Placing`): by
GPUs alone in a standalone queue, by all resources of the nodes in a cluster.

Sets of pods on one node are tried in the order of their cost, over all nodes at once. A set is a
solution if the request fits once its pods have left, and every pod of it then fits somewhere else.
The first solution is the cheapest of those whose pods are on one node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Protocol

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.choose import (
    Chosen,
    NoPlace,
    PodToPlace,
    Topology,
    place,
    why_infeasible,
)
from queuecontroller.scheduler.placement.preemption.estimate import NodeEstimate
from queuecontroller.scheduler.placement.request import WHOLE_PPM, GpuRequest
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock
from queuecontroller.scheduler.preemption.room import RoomMove

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


def memory_mib(stock: Stock, requests: Iterable[tuple[GpuRequest, int]]) -> int:
    """GPU memory of requests, each with its number of pods, in MiB; where a part of a GPU's memory
    is requested, or all of it, that of the largest. Moves for them must not cost more."""
    gpus = (one.gpu.memory_bytes for room in stock.nodes.values() for one in room.gpus.values())
    whole, total = max(gpus, default=0), 0
    for request, pods in requests:
        memory = request.memory_bytes
        if memory is None:
            memory = whole * (request.memory_ppm or WHOLE_PPM) // WHOLE_PPM
        total += memory * request.count * pods
    return total >> 20


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


class MoveTrial(Protocol):
    """A what-if without the movers, and with what was placed in it, until its undo."""

    def place_request(self) -> Sequence[Chosen] | None:
        """Places of all pods of the request; None if they do not fit."""

    def place_mover(self, mover: Movable) -> Chosen | None: ...

    def undo(self) -> None: ...


class Placing(Protocol):
    """The request, and how it and the movers are placed."""

    @property
    def owner(self) -> Hashable:
        """Owner of what is reserved for it already, which counts as free for itself."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that all pods of the request take together."""

    def rooms(self) -> Iterable[NodeRoom]:
        """Nodes that its pods may be on."""

    def kinds_on(self, room: NodeRoom) -> Sequence[PodToPlace]:
        """Its different GPU requests that the node may take."""

    def without(self, owners: Collection[Hashable]) -> MoveTrial: ...


def consolidate(
    stock: Stock,
    pods: Sequence[PodToPlace],
    movable: Callable[[Hashable], Movable | None],
    topology: Topology | None = None,
    max_cost: int | None = None,
    one_per_group: bool = False,
    owner: Hashable = None,
) -> Plan | None:
    """`plan_moves` for pods that are placed by their GPUs alone. `owner`: see `Placing`."""
    placing = _ByGpus(stock, pods, topology or Topology(), owner)
    return plan_moves(stock, placing, movable, max_cost, one_per_group)


def plan_moves(
    stock: Stock,
    placing: Placing,
    movable: Callable[[Hashable], Movable | None],
    max_cost: int | None = None,
    one_per_group: bool = False,
    trials: int = MAX_TRIALS,
) -> Plan | None:
    """The cheapest plan after which the request fits; None if there is none within the limits.
    `movable` returns None for an owner that may not be moved or has several pods. The stock is as
    before afterwards."""
    return _Search(stock, placing, movable, max_cost, one_per_group, trials).find()


def room_moves(stock: Stock, plan: Plan | None) -> tuple[RoomMove, ...]:
    """The moves of a plan with names for users; empty without one."""

    def named(node: str, shares: Iterable[Share]) -> str:
        gpus = stock.nodes[node].gpus
        indexes = sorted(gpus[share.uuid].gpu.index for share in shares if share.uuid in gpus)
        return f"GPU {', '.join(map(str, indexes))} of {node}"

    return tuple(
        RoomMove(
            WorkloadKey(str(one.owner)),
            named(one.node, one.shares),
            named(one.to.node, one.to.shares),
        )
        for one in (plan.moves if plan is not None else ())
    )


@dataclass(frozen=True, slots=True)
class _ByGpus:
    stock: Stock
    pods: Sequence[PodToPlace]
    topology: Topology
    owner: Hashable

    @property
    def gpus(self) -> int:
        return sum(pod.request.count for pod in self.pods)

    def rooms(self) -> Iterable[NodeRoom]:
        return self.stock.nodes.values()

    def kinds_on(self, room: NodeRoom) -> Sequence[PodToPlace]:
        return [pod for pod in self.pods if why_infeasible(room, pod, None) is None]

    def without(self, owners: Collection[Hashable]) -> MoveTrial:
        return _GpuTrial(self, owners)


class _GpuTrial:
    def __init__(self, placing: _ByGpus, owners: Collection[Hashable]) -> None:
        self._placing = placing
        self._bring_back = placing.stock.without({placing.owner, *owners})
        self._holds = placing.stock.trial()

    def _place(
        self, pods: Sequence[PodToPlace], topology: Topology | None = None
    ) -> list[Chosen] | None:
        found = place(self._placing.stock, pods, topology)
        if isinstance(found, NoPlace):
            return None
        for one in found:
            self._holds.hold(one.node, one.shares)
        return found

    def place_request(self) -> Sequence[Chosen] | None:
        return self._place(self._placing.pods, self._placing.topology)

    def place_mover(self, mover: Movable) -> Chosen | None:
        found = self._place([mover.pod])
        return found[0] if found is not None else None

    def undo(self) -> None:
        self._holds.undo()
        self._bring_back()


@dataclass(slots=True)
class _Search:
    stock: Stock
    placing: Placing
    movable: Callable[[Hashable], Movable | None]
    max_cost: int | None
    one_per_group: bool
    trials: int
    _movers: dict[Hashable, Movable] = field(default_factory=dict)

    def find(self) -> Plan | None:
        for owners in islice(self._sets(), self.trials):
            plan = self._plan(owners)
            if plan is not None:
                return plan
        return None

    def _sets(self) -> Iterator[frozenset[Hashable]]:
        """Sets of pods whose end may make room for the request, the cheapest first."""
        queue: list[tuple[int, int, int, tuple[int, ...]]] = []
        bring_back = self.stock.without({self.placing.owner})
        try:
            lines = self._lines()
        finally:
            bring_back()
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

    def _lines(self) -> list[tuple[list[NodeEstimate], list[Movable]]]:
        """Movable pods that are combined with each other, the cheapest first, and estimates of
        their node."""
        lines: list[tuple[list[NodeEstimate], list[Movable]]] = []
        rooms = sorted(self.placing.rooms(), key=lambda room: -room.free_bytes)
        for room in rooms[:MAX_NODES]:
            kinds = self.placing.kinds_on(room)
            there = self._movables_on(room, kinds)
            if there and kinds:
                estimates = [NodeEstimate(room, pod) for pod in kinds]
                lines += [(estimates, few) for few in self._together(there)]
        return lines

    def _together(self, there: Sequence[Movable]) -> list[list[Movable]]:
        """Pods of which a solution may consist: for a request of one GPU those on one GPU, else all
        on the node."""
        if self.placing.gpus > 1:
            return [list(there)]
        on_gpus: dict[str, list[Movable]] = {}
        for one in there:
            for uuid in {share.uuid for share in self.stock.holdings(one.owner)[0].shares}:
                on_gpus.setdefault(uuid, []).append(one)
        return list(on_gpus.values())

    def _movables_on(self, room: NodeRoom, kinds: Sequence[PodToPlace]) -> list[Movable]:
        """Movable pods on a node, the cheapest first; those on GPUs that the request does not take
        are left out."""
        taken = {
            uuid
            for uuid, one in room.gpus.items()
            if any(pod.request.wants(one.gpu) is None for pod in kinds)
        }
        found = []
        for owner, shares in self.stock.shares_at(room.name).items():
            if not any(share.uuid in taken for share in shares):
                continue
            movable = self.movable(owner)
            if movable is not None and len(self.stock.holdings(owner)) == 1:
                self._movers[owner] = movable
                found.append(movable)
        return sorted(found, key=lambda one: (one.cost, str(one.owner)))

    def _may_help(self, estimate: NodeEstimate, leaving: Collection[Movable]) -> bool:
        """False if the node has no room for the pod even without these pods."""
        shares = [s for one in leaving for s in self.stock.holdings(one.owner)[0].shares]
        estimate.leave(shares, False)
        found = estimate.takes(1)
        estimate.come_back(shares, False)
        return found

    def _plan(self, owners: frozenset[Hashable]) -> Plan | None:
        movers = [self._movers[owner] for owner in owners]
        trial = self.placing.without(owners)
        try:
            places = trial.place_request()
            if places is None:
                return None
            moves = []
            for mover in sorted(movers, key=_large_first):
                to = trial.place_mover(mover)
                if to is None:
                    return None
                before = self.stock.holdings(mover.owner)[0]
                if (to.node, to.shares) != (before.node, before.shares):
                    moves.append(Move(mover.owner, before.node, before.shares, to, mover.cost))
            return Plan(tuple(places), tuple(moves))
        finally:
            trial.undo()


def _large_first(one: Movable) -> tuple[int, int, str]:
    request = one.pod.request
    memory = request.memory_bytes if request.memory_bytes is not None else 1 << 62
    return (-request.count, -memory, str(one.owner))
