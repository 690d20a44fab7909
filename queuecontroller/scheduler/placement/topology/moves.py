"""Consolidation where pods are placed by all resources of the nodes: `consolidation.Placing` over
the room by topologies.

A mover has to fit where it would go as the scheduler will place it, also by its topology, CPU and
node selector, beside the request and the movers before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.placement.choose import Chosen, NoPlace, PodToPlace, place
from queuecontroller.scheduler.placement.consolidation import (
    Movable,
    memory_mib,
    plan_moves,
    room_moves,
)
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import NodeRoom, Stock
from queuecontroller.scheduler.placement.topology.devices import Devices, Places, Trial
from queuecontroller.scheduler.placement.topology.wishes import GivenPods
from queuecontroller.scheduler.preemption.room import RoomMove

MAX_TRIALS: Final = 100
MIN_TRIALS: Final = 10
LOOKS: Final = 10_000
"""Nodes that are looked at for one plan, over all trials: a trial looks at all of them, which takes
7 ms for a thousand."""
Used = Counter[tuple[Hashable, str]]
"""Amounts that the requests placed before take, by place and resource."""
Find = Callable[[Trial, Workload, list[GivenPods], Collection[WorkloadKey], Used], Places | None]
"""Places a workload in a trial without some others; None: it does not fit."""


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A running workload of one pod, whose job starts it again where it is placed next."""

    workload: Workload
    movable: Movable


class Moving(Protocol):
    """Facts about pods with GPU shares that moves need."""

    @property
    def stock(self) -> Stock: ...

    def requests(self, key: WorkloadKey) -> Mapping[str, Sequence[GpuRequest]]:
        """GPU requests of one pod of each pod set, by container; without init containers that end
        before the others start."""

    def running(self, key: WorkloadKey) -> RunningPod | None: ...

    def may_move(self, key: WorkloadKey) -> bool:
        """True if its owner permits to restart it elsewhere now, for another workload."""

    def leaving(self) -> Collection[Hashable]:
        """Owners in the stock that leave anyway: pods that are being deleted."""

    def chosen(self, places: Places) -> list[Chosen]:
        """The places of an admission, with their GPUs."""


def moves_for(
    moving: Moving,
    devices: Devices,
    find: Find,
    workload: Workload,
    given: list[GivenPods],
    nodes: Collection[str],
    may_move: Callable[[WorkloadKey], bool] | None,
) -> tuple[RoomMove, ...]:
    """See `Room.moves`. `nodes`: those where a pod of the workload fits without GPUs."""
    requests = moving.requests(workload.key)
    wanted = [(one, pods.count) for pods in given for one in requests.get(pods.name, ())]
    if not wanted or not nodes:
        return ()
    movers: dict[Hashable, RunningPod] = {}

    def movable(owner: Hashable) -> Movable | None:
        if not isinstance(owner, str):
            return None  # a pod that no queue holds
        key = WorkloadKey(owner)
        if may_move is not None and not (moving.may_move(key) and may_move(key)):
            return None
        found = moving.running(key)
        if found is None or not _has_room(moving.stock, found.movable):
            return None
        movers[owner] = found
        return found.movable

    def trial(owners: Collection[Hashable]) -> _Trial:
        return _Trial(moving, devices, find, (workload, given), movers, owners)

    leaving = moving.leaving() if may_move is not None else ()
    if leaving and _fits_without(moving.stock, leaving, trial):
        return ()  # It only has to wait: the pods of an earlier move may be among them.
    worth = memory_mib(moving.stock, wanted) if may_move is not None else None
    placing = _Placing(workload.key, moving.stock, wanted, nodes, trial)
    trials = min(MAX_TRIALS, max(MIN_TRIALS, LOOKS // len(nodes)))
    plan = plan_moves(moving.stock, placing, movable, worth, may_move is not None, trials)
    return room_moves(moving.stock, plan)


def _has_room(stock: Stock, mover: Movable) -> bool:
    """True if some GPU has room for a mover while all others stay. Without, it could only go where
    another mover has been, which is rare, and most work of a full cluster is left out by this."""
    return not isinstance(place(stock, [mover.pod]), NoPlace)


def _fits_without(
    stock: Stock,
    leaving: Collection[Hashable],
    trial: Callable[[Collection[Hashable]], _Trial],
) -> bool:
    bring_back = stock.without(leaving)
    made = trial(())
    try:
        return made.place_request() is not None
    finally:
        made.undo()
        bring_back()


@dataclass(frozen=True, slots=True)
class _Placing:
    owner: Hashable
    stock: Stock
    wanted: Sequence[tuple[GpuRequest, int]]
    nodes: Collection[str]
    trial: Callable[[Collection[Hashable]], _Trial]

    @property
    def gpus(self) -> int:
        return sum(request.count * pods for request, pods in self.wanted)

    def rooms(self) -> Iterable[NodeRoom]:
        return [self.stock.nodes[name] for name in self.nodes if name in self.stock.nodes]

    def kinds_on(self, room: NodeRoom) -> Sequence[PodToPlace]:
        return [PodToPlace("", one) for one in dict.fromkeys(request for request, _ in self.wanted)]

    def without(self, owners: Collection[Hashable]) -> _Trial:
        return self.trial(owners)


class _Trial:
    def __init__(
        self,
        moving: Moving,
        devices: Devices,
        find: Find,
        request: tuple[Workload, list[GivenPods]],
        movers: Mapping[Hashable, RunningPod],
        owners: Collection[Hashable],
    ) -> None:
        self._moving = moving
        self._devices = devices
        self._find = find
        self._request = request
        self._movers = movers
        self._gone = {request[0].key, *(WorkloadKey(str(one)) for one in owners)}
        self._used: Used = Counter()
        self._trials: list[Trial] = []

    def _place(
        self, workload: Workload, given: list[GivenPods], gone: Collection[WorkloadKey]
    ) -> list[Chosen] | None:
        """`gone`: those that an earlier placing of this trial has not removed yet."""
        trial = self._devices.trial(workload, gone)
        self._trials.append(trial)
        places = self._find(trial, workload, given, self._gone, self._used)
        return self._moving.chosen(places) if places is not None else None

    def place_request(self) -> list[Chosen] | None:
        return self._place(*self._request, self._gone)

    def place_mover(self, mover: Movable) -> Chosen | None:
        if not _has_room(self._moving.stock, mover):
            return None  # The nodes need not be looked at.
        workload = self._movers[mover.owner].workload
        if workload.admission is None:
            return None
        given = [GivenPods(one.name, one.count, one.flavors) for one in workload.admission.pod_sets]
        found = self._place(workload, given, ())
        return found[0] if found else None

    def undo(self) -> None:
        for one in reversed(self._trials):
            one.undo()
