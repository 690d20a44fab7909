"""Where room could be made, the soonest first: the search behind preemption for room.

Those who may go have turns. For each node it can be said how many turns have to pass until it takes
a pod; the smallest such turn is where the search ends, and only those on that node matter. What
each node holds is kept in order of rank with running totals of memory and time, renewed only for
nodes that changed. Two bisections in the totals give a turn before which the node cannot do;
exactly looked at are those nodes alone whose bound comes before everything found, so a question
costs a few steps for each node and the workloads of a few nodes, however many workloads there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import NamedTuple

from queuecontroller.engine.crowd import AT_ONCE, Crowd, Turn
from queuecontroller.engine.holders import Rank
from queuecontroller.engine.model import WorkloadKey
from queuecontroller.engine.room import Opening
from queuecontroller.engine.workload_info import WorkloadInfo
from queuecontroller.placement.capacity import TAKES_WORK
from queuecontroller.placement.choose import PodToPlace, Topology, unfit
from queuecontroller.placement.ground import Ground
from queuecontroller.placement.request import GpuRequest
from queuecontroller.placement.shelves import Pool
from queuecontroller.placement.stock import NodeRoom, Share, Stock


class Standing(NamedTuple):
    """Somebody with quota on a node, and what he holds there."""

    rank: Rank
    info: WorkloadInfo
    shares: list[Share]


@dataclass(slots=True)
class _Stand:
    """All of them on one node, by rank."""

    version: int
    """The node's, when it was made."""
    all: list[Standing]
    queues: frozenset[str]
    bytes_until: list[int]
    """Memory that they hold together, up to each."""
    ppm_until: list[int]
    free_bytes: list[int]
    """On each GPU that gives shares, the most first."""
    free_ppm: list[int]


class Stands:
    """Of all nodes; kept between questions."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        self._of: dict[str, _Stand] = {}

    def moved(self, key: WorkloadKey) -> None:
        """It got or lost its quota, or its rank changed."""
        for held in self._stock.holdings(key):
            self._of.pop(held.node, None)

    def at(self, room: NodeRoom, crowd: Crowd) -> _Stand:
        found = self._of.get(room.name)
        if found is None or found.version != room.version:
            found = self._of[room.name] = self._look(room, crowd)
        return found

    def _look(self, room: NodeRoom, crowd: Crowd) -> _Stand:
        everyone = []
        for owner, shares in self._stock.shares_at(room.name).items():
            ranked = crowd.standing(WorkloadKey(owner)) if isinstance(owner, str) else None
            if ranked is not None:
                everyone.append(Standing(*ranked, shares))
        everyone.sort(key=_by_rank)
        gpus = [
            gpu
            for gpu in room.gpus.values()
            if gpu.gpu.health in TAKES_WORK and not gpu.gpu.mig_enabled
        ]
        return _Stand(
            room.version,
            everyone,
            frozenset(one.info.cluster_queue for one in everyone),
            list(accumulate(sum(s.memory_bytes for s in one.shares) for one in everyone)),
            list(accumulate(sum(s.share_ppm for s in one.shares) for one in everyone)),
            sorted((max(0, gpu.memory_bytes) for gpu in gpus), reverse=True),
            sorted((max(0, gpu.share_ppm) for gpu in gpus), reverse=True),
        )


def _by_rank(one: Standing) -> Rank:
    return one.rank


@dataclass(slots=True)
class Search:
    """One question: where could these pods be, once others have left? Used once."""

    stock: Stock
    stands: Stands
    crowd: Crowd
    pods: Sequence[PodToPlace]
    topology: Topology
    gone: Iterable[WorkloadKey]
    """Those who have left already."""
    time_only: Callable[[WorkloadKey], bool]
    """Who would only be paused: memory and slots stay its own."""
    looked_at: int = 0
    """Nodes that were gone through one by one."""
    _kinds: list[PodToPlace] = field(init=False)
    _counts: list[int] = field(init=False)
    _left: dict[str, list[tuple[list[Share], bool]]] = field(init=False)
    """What those who have left held, by node."""
    _queue: list[tuple[Turn, bool, str, int, int, int]] = field(default_factory=list)
    """Turn, whether that is only a bound, node, kind, pods of it; where it is none: how many queues
    were known then to borrow no more."""
    _lines: dict[str, list[tuple[Turn, Standing]]] = field(default_factory=dict)
    """By node: who may be made to go there, in order."""
    _helps: dict[str, bool] = field(default_factory=dict)
    _open: dict[str, None] = field(default_factory=dict)
    """Nodes that can take a pod by now."""

    def __post_init__(self) -> None:
        counted = Counter(replace(pod, pod="") for pod in self.pods)
        self._kinds, self._counts = list(counted), list(counted.values())
        self._left = {}
        for owner in self.gone:
            time_only = self.time_only(owner)
            for held in self.stock.holdings(owner):
                self._left.setdefault(held.node, []).append((list(held.shares), time_only))

    def openings(self) -> Iterator[Opening]:
        """Sooner ones first, in growing steps: before the first there surely is no room, with the
        last everybody is gone who may be made to and stands where a pod could be. None at all where
        even then there is no room."""
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
                self.crowd.look_until(turn, self._makes_room)
                yield self._opening(turn)

    def _is_past(self, turn: Turn) -> bool:
        return not self._queue or self._queue[0][0] > turn

    def _domain(self, node: str) -> str | None:
        """Pods have to be together within one."""
        if self.topology.required is None:
            return None
        return self.stock.nodes[node].capacity.labels.get(self.topology.required)

    def _opening(self, turn: Turn) -> Opening:
        who: dict[WorkloadKey, tuple[Turn, WorkloadInfo]] = {}
        for node in self._open:
            for at, one in self._line(node):
                if at <= turn and self.crowd.still_goes(one.info, at):
                    who[one.info.key] = (at, one.info)
        return Opening(turn, tuple(sorted(who.values(), key=_by_turn)))

    # -- the soonest first ------------------------------------------------------------------------

    def _begin(self) -> None:
        for kind, pod in enumerate(self._kinds):
            request = pod.request
            least: dict[Pool, int | None] = {}
            for room in self._rooms(pod):
                turn: Turn | None = AT_ONCE
                if not (pod.again or request.mig or room.name in self._left):
                    if room.pool not in least:
                        least[room.pool] = request.least_bytes(room.pool)
                    turn = self._no_sooner(room, request, least[room.pool])
                if turn is not None:
                    self._queue.append((turn, True, room.name, kind, 1, 0))
        heapify(self._queue)

    def _rooms(self, pod: PodToPlace) -> Iterable[NodeRoom]:
        nodes = self.stock.nodes
        if pod.node:
            return [nodes[pod.node]] if pod.node in nodes else []
        named = pod.request.gpu_uuids or pod.request.use_uuids
        if named:
            rooms = (self.stock.node_of(uuid) for uuid in named)
            return {room.name: room for room in rooms if room is not None}.values()
        return nodes.values()

    def _no_sooner(self, room: NodeRoom, request: GpuRequest, least: int | None) -> Turn | None:
        """The turn before which the node surely cannot take one; None: it never can."""
        if least is None:
            return None
        stand = self.stands.at(room, self.crowd)
        need = _missing(stand.free_bytes, request.count, least)
        need_ppm = _missing(stand.free_ppm, request.count, request.share_ppm if request.hard else 0)
        if need is None or need_ppm is None:
            return None
        if (need <= 0 and need_ppm <= 0) or not self.crowd.by_rank:
            return AT_ONCE
        if stand.queues <= self.crowd.queues:
            at = max(bisect_left(stand.bytes_until, need), bisect_left(stand.ppm_until, need_ppm))
            if at == len(stand.all):
                return None
            rank = stand.all[at].rank
        else:
            found = self._reached(stand, need, need_ppm)
            if found is None:
                return None
            rank = found
        if rank[0] and rank[1] >= self.crowd.below:
            return None
        return self.crowd.no_sooner_than(rank)

    def _reached(self, stand: _Stand, need: int, need_ppm: int) -> Rank | None:
        """The same where not everybody's queue is one that gives."""
        queues = self.crowd.queues
        for rank, info, shares in stand.all:
            if info.cluster_queue in queues:
                for share in shares:
                    need -= share.memory_bytes
                    need_ppm -= share.share_ppm
                if need <= 0 and need_ppm <= 0:
                    return rank
        return None

    def _events(self) -> Iterator[tuple[Turn, str, int]]:
        """(Turn, node, kind): one pod more of the kind could be on the node, taken by itself."""
        queue = self._queue
        while queue:
            turn, is_bound, node, kind, pods, ended = heappop(queue)
            if is_bound:
                if pods == 1 and self._is_unfit(node, kind):
                    continue
                self._push(node, kind, pods)
                continue
            self.crowd.look_until(turn, self._makes_room)
            if self.crowd.ended != ended:
                self._push(node, kind, pods)  # some who were counted on may not go
                continue
            if pods < self._counts[kind]:
                heappush(queue, (turn, True, node, kind, pods + 1, 0))
            yield turn, node, kind

    def _push(self, node: str, kind: int, pods: int) -> None:
        turn = self._when(node, self._kinds[kind], pods)
        if turn is not None:
            heappush(self._queue, (turn, False, node, kind, pods, self.crowd.ended))

    def _is_unfit(self, node: str, kind: int) -> bool:
        return unfit(self.stock.nodes[node], self._kinds[kind], None) is not None

    # -- one node ---------------------------------------------------------------------------------

    def _line(self, node: str) -> list[tuple[Turn, Standing]]:
        found = self._lines.get(node)
        if found is None:
            stand = self.stands.at(self.stock.nodes[node], self.crowd)
            found = [
                (turn, one)
                for one in stand.all
                if (turn := self.crowd.turn((one.rank, one.info))) is not None
            ]
            found.sort(key=_by_first)
            self._lines[node] = found
        return found

    def _when(self, node: str, pod: PodToPlace, pods: int, whoever: bool = False) -> Turn | None:
        """The turn with which the node takes so many; None: not with everybody gone either.
        `whoever`: also those who go no more since their queue borrows no more."""
        self.looked_at += 1
        ground = Ground(self.stock.nodes[node], pod)
        for shares, time_only in self._left.get(node, ()):
            ground.leave(shares, time_only)
        if ground.takes(pods):
            return AT_ONCE
        for turn, one in self._line(node):
            if not whoever and not self.crowd.still_goes(one.info, turn):
                continue
            if ground.leave(one.shares, self.time_only(one.info.key)) and ground.takes(pods):
                return turn
        return None

    def _makes_room(self, key: WorkloadKey) -> bool:
        """Whether it stands where a pod could be with everybody gone."""
        for held in self.stock.holdings(key):
            helps = self._helps.get(held.node)
            if helps is None:
                helps = self._helps[held.node] = held.node in self.stock.nodes and any(
                    (not pod.node or pod.node == held.node)
                    and not self._is_unfit(held.node, kind)
                    and self._when(held.node, pod, 1, whoever=True) is not None
                    for kind, pod in enumerate(self._kinds)
                )
            if helps:
                return True
        return False


def _missing(free: Sequence[int], count: int, each: int) -> int | None:
    """How much has to become free at least until so many have so much each; `free` has the most
    first. None: they are fewer."""
    if len(free) < count:
        return None
    return sum(each - one for one in free[:count] if one < each)


def _by_first(one: tuple[Turn, Standing]) -> Turn:
    return one[0]


def _by_turn(one: tuple[Turn, WorkloadInfo]) -> Turn:
    return one[0]
