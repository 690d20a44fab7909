"""The search behind preemption for room: which nodes could get room, the soonest first.

Each candidate has a turn, its place in the order of preemption. Each node takes a pod from some
turn on: once all candidates up to it have left. Nodes are opened in the order of these turns until
there is room for all pods, and only the candidates on open nodes matter. Running totals (`holders`)
give each node a lower bound of its turn, first by the node's sums, then GPU by GPU; only nodes
whose bound comes before everything found are counted exactly (`estimate`). So a search costs a step
for each node and the workloads of a few nodes, however many workloads there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.choose import PodToPlace, Topology, why_infeasible
from queuecontroller.scheduler.placement.node_index import Pool
from queuecontroller.scheduler.placement.preemption.estimate import NodeEstimate
from queuecontroller.scheduler.placement.preemption.holders import (
    NEVER,
    Holder,
    HoldersByNode,
    NodeHolders,
    Shape,
    tight_key,
)
from queuecontroller.scheduler.placement.stock import NodeRoom, Share, Stock
from queuecontroller.scheduler.preemption.candidates import AT_ONCE, Candidates, Turn
from queuecontroller.scheduler.preemption.room import Opening, SearchBudget

_CLOSE_STEPS: Final = 4
_EXACT_STEPS: Final = 20
_FOUND: Final = 0
_EXACTLY: Final = 1
"""A bound that is to be refined to the exact turn next."""
_ROUGHLY: Final = 2
"""A bound that is to be refined to the tight bound next."""


@dataclass(slots=True)
class Search:
    """One search for room for `pods`, made by candidates that leave. Used once."""

    stock: Stock
    by_node: HoldersByNode
    candidates: Candidates
    pods: Sequence[PodToPlace]
    topology: Topology
    gone: Iterable[WorkloadKey]
    """Workloads that are assumed to have left already."""
    time_only: Callable[[WorkloadKey], bool]
    """True for victims that would only be paused and keep their memory and slots."""
    budget: SearchBudget
    _kinds: list[PodToPlace] = field(init=False)
    _counts: list[int] = field(init=False)
    _keys: list[Hashable] = field(init=False)
    _left: dict[str, list[tuple[tuple[Share, ...], bool]]] = field(init=False)
    """Shares that the removed workloads held, by node."""
    _queue: list[tuple[Turn, int, str, int, int, int]] = field(default_factory=list)
    """Turn, kind of bound, node, kind of pod, number of pods, and the number of queues known to
    borrow no more when it was found."""
    _lines: dict[str, list[tuple[Turn, Holder]]] = field(default_factory=dict)
    """Candidates by node, in the order of preemption."""
    _helps: dict[str, bool] = field(default_factory=dict)
    _open: dict[str, None] = field(default_factory=dict)
    """Nodes that can take a pod at the turn that the search has reached."""

    def __post_init__(self) -> None:
        counted = Counter(replace(pod, pod="") for pod in self.pods)
        self._kinds, self._counts = list(counted), list(counted.values())
        self._keys = [tight_key(pod.request) for pod in self._kinds]
        self._left = {}
        for owner in self.gone:
            time_only = self.time_only(owner)
            for held in self.stock.holdings(owner):
                self._left.setdefault(held.node, []).append((held.shares, time_only))

    def openings(self) -> Iterator[Opening]:
        """Openings in growing steps, the soonest first: before the first there is certainly no
        room; with the last, all candidates on suitable nodes are gone. Empty if even then there is
        no room."""
        self._begin()
        found: dict[str | None, list[int]] = {}
        enough, show = False, 0
        turn = AT_ONCE
        shown: Turn | None = None
        for seen, (at, node, kind) in enumerate(self._events()):
            if enough and at != turn and turn != shown and seen >= show:
                yield self._opening(turn)
                shown, show = turn, 2 * seen + 1
            turn = at
            self._open[node] = None
            where = self._domain(node)
            if not enough and (where is not None or self.topology.required is None):
                counts = found.setdefault(where, [0] * len(self._kinds))
                counts[kind] += 1
                enough = all(a >= b for a, b in zip(counts, self._counts, strict=True))
            if enough and turn != shown and seen >= show and self._is_past(turn):
                yield self._opening(turn)
                shown, show = turn, 2 * seen + 1
        if enough:
            if turn != shown:
                shown = turn
                yield self._opening(turn)
            lasts = [line[-1][0] for node in self._open if (line := self._line(node))]
            turn = max(lasts, default=turn)
            if turn != shown:
                self.candidates.look_until(turn, self._makes_room)
                yield self._opening(turn)

    def _is_past(self, turn: Turn) -> bool:
        return not self._queue or self._queue[0][0] > turn

    def _domain(self, node: str) -> str | None:
        """The node's domain of the required topology; None if none is required, or it has none."""
        if self.topology.required is None:
            return None
        return self.stock.nodes[node].capacity.labels.get(self.topology.required)

    def _opening(self, turn: Turn) -> Opening:
        suitable: dict[WorkloadKey, tuple[Turn, WorkloadInfo]] = {}
        for node in self._open:
            for at, one in self._line(node):
                if at <= turn and self.candidates.still_goes(one.info, at):
                    suitable[one.info.key] = (at, one.info)
        return Opening(turn, tuple(sorted(suitable.values(), key=_by_turn)))

    # -- the soonest first ------------------------------------------------------------------------

    def _begin(self) -> None:
        """Push a bound for every node and kind: the one part of a search that walks all nodes."""
        queue, left, candidates, budget = self._queue, self._left, self.candidates, self.budget
        at = self.by_node.at
        for kind, pod in enumerate(self._kinds):
            request = pod.request
            count, share_ppm = request.count, request.share_ppm if request.hard else 0
            exactly = bool(pod.again or request.mig)
            shapes: dict[Pool, Shape | None] = {}
            for room in self._rooms(pod):
                name = room.name
                if exactly or name in left:
                    queue.append((AT_ONCE, _EXACTLY, name, kind, 1, 0))
                    continue
                if room.pool not in shapes:
                    least = request.least_bytes(room.pool)
                    shapes[room.pool] = None if least is None else (count, least, share_ppm)
                shape = shapes[room.pool]
                if shape is None:
                    continue
                holders = at(room, candidates, budget)
                how = _EXACTLY
                place = holders.known(self._keys[kind])
                if place is None:
                    how = _ROUGHLY
                    if holders.queues <= candidates.queues:
                        place = holders.roughly(shape)
                    else:
                        place = holders.roughly_of(shape, candidates.queues)
                turn = self._turn(holders, place)
                if turn is not None and not candidates.by_rank:
                    turn, how = AT_ONCE, _EXACTLY  # any of those on the node may be the first to go
                if turn is not None:
                    queue.append((turn, how, name, kind, 1, 0))
        budget.take(len(queue))
        heapify(queue)

    def _rooms(self, pod: PodToPlace) -> Iterable[NodeRoom]:
        nodes = self.stock.nodes
        if pod.node:
            return [nodes[pod.node]] if pod.node in nodes else []
        named = pod.request.gpu_uuids or pod.request.use_uuids
        if named:
            rooms = (self.stock.node_of(uuid) for uuid in named)
            return {room.name: room for room in rooms if room is not None}.values()
        return self.stock.with_mig() if pod.request.mig else nodes.values()

    def _tightly(self, node: str, kind: int) -> Turn | None:
        """A turn before which the node certainly takes no pod, GPU by GPU; None: it never does."""
        self.budget.take(_CLOSE_STEPS)
        holders = self.by_node.at(self.stock.nodes[node], self.candidates, self.budget)
        place = holders.tightly(self._kinds[kind].request, self._keys[kind])
        return self._turn(holders, place)

    def _turn(self, holders: NodeHolders, place: int) -> Turn | None:
        if place < 0:
            return AT_ONCE
        if place == NEVER:
            return None
        rank = holders.all[place].rank
        if rank[0] and rank[1] >= self.candidates.below:
            return None
        return self.candidates.no_sooner_than(rank)

    def _events(self) -> Iterator[tuple[Turn, str, int]]:
        """The turn from which a node takes one more pod of a kind, in order of turns. Each kind is
        counted as if the node got no pod of the others."""
        queue = self._queue
        while queue:
            turn, how, node, kind, pods, ended = heappop(queue)
            if how == _ROUGHLY:
                if not self._is_infeasible(node, kind):
                    closer = self._tightly(node, kind)
                    if closer is not None:
                        heappush(queue, (max(turn, closer), _EXACTLY, node, kind, pods, 0))
                continue
            if how == _EXACTLY:
                if pods > 1 or not self._is_infeasible(node, kind):
                    self._push(node, kind, pods)
                continue
            self.candidates.look_until(turn, self._makes_room)
            if self.candidates.ended != ended:
                self._push(node, kind, pods)  # some candidates that were counted may not be removed
                continue
            if pods < self._counts[kind]:
                heappush(queue, (turn, _EXACTLY, node, kind, pods + 1, 0))
            yield turn, node, kind

    def _push(self, node: str, kind: int, pods: int) -> None:
        turn = self._when(node, self._kinds[kind], pods)
        if turn is not None:
            heappush(self._queue, (turn, _FOUND, node, kind, pods, self.candidates.ended))

    def _is_infeasible(self, node: str, kind: int) -> bool:
        return why_infeasible(self.stock.nodes[node], self._kinds[kind], None) is not None

    # -- one node ---------------------------------------------------------------------------------

    def _line(self, node: str) -> list[tuple[Turn, Holder]]:
        found = self._lines.get(node)
        if found is None:
            holders = self.by_node.at(self.stock.nodes[node], self.candidates, self.budget)
            found = [
                (turn, one)
                for one in holders.all
                if (turn := self.candidates.turn((one.rank, one.info))) is not None
            ]
            found.sort(key=_by_first)
            self._lines[node] = found
        return found

    def _when(
        self, node: str, pod: PodToPlace, pods: int, even_spared: bool = False
    ) -> Turn | None:
        """The turn from which the node takes `pods` pods; None: not even with all candidates gone.
        With `even_spared`, candidates whose queue borrows no more count as well."""
        self.budget.take(_EXACT_STEPS)
        estimate = NodeEstimate(self.stock.nodes[node], pod)
        for shares, time_only in self._left.get(node, ()):
            estimate.leave(shares, time_only)
        if estimate.takes(pods):
            return AT_ONCE
        for turn, one in self._line(node):
            if not even_spared and not self.candidates.still_goes(one.info, turn):
                continue
            if estimate.leave(one.shares, self.time_only(one.info.key)) and estimate.takes(pods):
                return turn
        return None

    def _makes_room(self, key: WorkloadKey) -> bool:
        """True if the workload holds a part of a node that could take a pod once all candidates
        have left."""
        for held in self.stock.holdings(key):
            helps = self._helps.get(held.node)
            if helps is None:
                helps = self._helps[held.node] = held.node in self.stock.nodes and any(
                    (not pod.node or pod.node == held.node)
                    and not self._is_infeasible(held.node, kind)
                    and self._when(held.node, pod, 1, even_spared=True) is not None
                    for kind, pod in enumerate(self._kinds)
                )
            if helps:
                return True
        return False


def _by_first(one: tuple[Turn, Holder]) -> Turn:
    return one[0]


def _by_turn(one: tuple[Turn, WorkloadInfo]) -> Turn:
    return one[0]
