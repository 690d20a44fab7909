"""The scheduler's port for room, over a stock: placements and reservations of workloads.

A workload's own holds count as free for itself. A reservation overlaps what its victims still hold:
the stock is overdrawn there until they have terminated, so no other workload gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.objects import Workload, WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.choose import Chosen, NoPlace, PodToPlace, Topology, place
from queuecontroller.scheduler.placement.consolidation import (
    Movable,
    consolidate,
    memory_mib,
    room_moves,
)
from queuecontroller.scheduler.placement.preemption.fill_back import FillBack
from queuecontroller.scheduler.placement.preemption.holders import HoldersByNode
from queuecontroller.scheduler.placement.preemption.search import Search
from queuecontroller.scheduler.placement.stock import Share, Stock
from queuecontroller.scheduler.preemption.candidates import Candidates
from queuecontroller.scheduler.preemption.room import Opening, RoomMove, SearchBudget, Verdict


@dataclass(frozen=True, slots=True)
class GivenPods:
    """Count and flavor of each resource that the scheduler gave one pod set."""

    name: str
    count: int
    flavors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """All pods of a workload that need a place; `wrong` is the error if they cannot have one."""

    pods: tuple[PodToPlace, ...] = ()
    topology: Topology = field(default_factory=Topology)
    wrong: str = ""


class WorkloadFacts(Protocol):
    """Properties of workloads that a room needs and the stock does not have."""

    def room_request(self, workload: Workload, given: Iterable[GivenPods]) -> RoomRequest: ...

    def shape(self, workload: Workload) -> Hashable:
        """Everything else that decides about room, see `preemption.room.Room`."""

    def pauses(self, key: WorkloadKey) -> bool:
        """True if preemption only pauses it: it keeps its memory and slots."""

    def yields(self, key: WorkloadKey, priority: int) -> bool:
        """True if a workload of this priority may have the memory it keeps while it is paused."""

    def movable(self, owner: Hashable) -> Movable | None:
        """A running workload's only pod, if it may be moved."""

    def may_move(self, key: WorkloadKey) -> bool:
        """True if its owner permits to restart it elsewhere now, for another workload."""

    def resting(self, priority: int) -> Collection[WorkloadKey]:
        """Paused workloads without quota that yield to this priority."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Key of a reservation for a pod; equal to no key of another class."""

    workload: WorkloadKey
    pod: str


Found = tuple[list[Chosen], Verdict]
Placed = tuple[str, tuple[Share, ...]]
"""Node, and shares on it."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Result of a `look`, and its arguments and stock at that time, by `changes`."""

    workload: Workload
    given: list[GivenPods]
    gone: set[WorkloadKey]
    changes: int
    found: Found


class StockRoom:
    def __init__(self, stock: Stock, facts: WorkloadFacts) -> None:
        self.stock = stock
        self._facts = facts
        self._kept: dict[WorkloadKey, list[Chosen]] = {}
        self._last_look: _Look | None = None
        """The last result, since a workload is usually looked up right before its reservation."""
        self._holders_by_node = HoldersByNode(stock)

    @property
    def generation(self) -> int:
        return self.stock.changes

    @property
    def freed(self) -> int:
        return self.stock.freed

    def shape(self, workload: Workload) -> Hashable:
        return self._facts.shape(workload)

    def look(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        given = given_of(assignment)
        found = self._find(info.workload, given, gone)
        self._last_look = _Look(info.workload, given, set(gone), self.stock.changes, found)
        return found[1]

    def moves(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        may_move: Callable[[WorkloadKey], bool] | None = None,
    ) -> tuple[RoomMove, ...]:
        request = self._facts.room_request(info.workload, given_of(assignment))
        if request.wrong or not request.pods:
            return ()
        movable, worth = self._facts.movable, None
        if may_move is not None:
            movable = partial(self._permitted, may_move)
            worth = memory_mib(self.stock, ((one.request, 1) for one in request.pods))
        plan = consolidate(
            self.stock,
            request.pods,
            movable,
            request.topology,
            worth,
            may_move is not None,
            info.key,
        )
        return room_moves(self.stock, plan)

    def _permitted(
        self, may_move: Callable[[WorkloadKey], bool], owner: Hashable
    ) -> Movable | None:
        """The pod of an owner that permits moves and that the scheduler may move."""
        key = WorkloadKey(str(owner))
        permitted = isinstance(owner, str) and self._facts.may_move(key) and may_move(key)
        return self._facts.movable(owner) if permitted else None

    def openings(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        candidates: Candidates,
        budget: SearchBudget,
    ) -> Iterator[Opening]:
        request = self._facts.room_request(info.workload, given_of(assignment))
        resting, time_only = self._at_most(info)
        gone = {info.key, *candidates.gone, *resting}
        search = Search(
            self.stock,
            self._holders_by_node,
            candidates,
            request.pods,
            request.topology,
            gone,
            time_only,
            budget,
        )
        return search.openings()

    def fill_back(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        gone: Collection[WorkloadKey],
        who: Collection[WorkloadKey],
    ) -> FillBack:
        request = self._facts.room_request(info.workload, given_of(assignment))
        resting, time_only = self._at_most(info)
        left = {info.key, *gone, *resting}
        return FillBack(self.stock, request.pods, left, who, time_only)

    def _at_most(
        self, info: WorkloadInfo
    ) -> tuple[set[WorkloadKey], Callable[[WorkloadKey], bool]]:
        """Workloads that may be removed for it besides the victims (paused ones), and a test for
        those that would keep memory and slots."""
        key, priority = info.key, info.priority
        resting = set(self._facts.resting(priority)) - {key}

        def time_only(one: WorkloadKey) -> bool:
            stays = one != key and one not in resting and self._facts.pauses(one)
            return stays and not self._facts.yields(one, priority)

        return resting, time_only

    def restored(self, workload: Workload) -> None:
        """Ignored: its pods are in the stock, or will be placed; an admission has no GPUs."""

    def moved(self, key: WorkloadKey) -> None:
        self._holders_by_node.moved(key)

    def keep(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        given, last, leave = given_of(assignment), self._last_look, set(gone)
        if (
            last is not None
            and last.workload is info.workload
            and (last.given, last.gone, last.changes) == (given, leave, self.stock.changes)
        ):
            return self._keep(info.workload, last.found)
        return self.claim(info.workload, given, leave)

    def claim(
        self, workload: Workload, given: Iterable[GivenPods], gone: Collection[WorkloadKey] = ()
    ) -> Verdict:
        """`keep` for a workload that the scheduler has handled before."""
        return self._keep(workload, self._find(workload, given, gone))

    def forget_look(self) -> None:
        """Drop the cached result, after a change that the stock does not have."""
        self._last_look = None

    def _keep(self, workload: Workload, found: Found) -> Verdict:
        chosen, verdict = found
        if not verdict.refusal and self._kept.get(workload.key, []) != chosen:
            self.release(workload.key)
            self._kept[workload.key] = chosen
            for one in chosen:
                key = Kept(workload.key, one.pod)
                self.stock.hold(key, one.node, one.shares, workload.key)
        return verdict

    def release(self, key: WorkloadKey) -> None:
        for one in self._kept.pop(key, ()):
            self.stock.release(Kept(key, one.pod))

    def kept(self, key: WorkloadKey) -> list[Chosen] | None:
        return self._kept.get(key)

    def take_over(self, workload: WorkloadKey, pod: str, key: Hashable, place: Placed) -> bool:
        """Hold the reservation of a workload's only pod under `key` from now on, if it is exactly
        this place; nothing else changes. Returns False if it is another place."""
        kept = self._kept.get(workload, ())
        if [(one.pod, one.node, one.shares) for one in kept] != [(pod, *place)]:
            return False
        del self._kept[workload]
        self.stock.rename(Kept(workload, pod), key)
        return True

    def _find(
        self, workload: Workload, given: Iterable[GivenPods], gone: Collection[WorkloadKey]
    ) -> Found:
        request = self._facts.room_request(workload, given)
        if request.wrong:
            return [], Verdict(request.wrong, preempting_helps=False)
        if not request.pods:
            return [], Verdict()
        leave = set(gone)
        found = self._place(workload.key, request, leave, self._facts.pauses)
        if not isinstance(found, NoPlace):
            return found, Verdict(in_the_way=self._in_the_way(found, leave))
        resting = set(self._facts.resting(workload.priority)) - {workload.key}
        yields = {
            key
            for key in leave
            if self._facts.pauses(key) and self._facts.yields(key, workload.priority)
        }
        if not resting and not yields:
            return [], Verdict(found.reason)
        after = self._place(
            workload.key,
            request,
            leave | resting,
            lambda key: key not in resting and key not in yields and self._facts.pauses(key),
        )
        if isinstance(after, NoPlace):
            return [], Verdict(found.reason)
        frees = self._in_the_way(after, resting)
        if leave - {workload.replaces}:  # others have to leave too, so it waits in any case
            return after, Verdict(in_the_way=self._in_the_way(after, leave), frees=frees)
        refusal = f"{found.reason}; {', '.join(sorted(frees))}, paused, gives its memory up for it"
        return [], Verdict(refusal, frees=frees, preempting_helps=False)

    def _place(
        self,
        key: WorkloadKey,
        request: RoomRequest,
        gone: Collection[WorkloadKey],
        pauses: Callable[[WorkloadKey], bool],
    ) -> list[Chosen] | NoPlace:
        undo = self.stock.without({key, *gone}, lambda one: one != key and pauses(one))
        try:
            return place(self.stock, request.pods, request.topology)
        finally:
            undo()

    def _in_the_way(
        self, chosen: Iterable[Chosen], owners: Collection[WorkloadKey]
    ) -> frozenset[WorkloadKey]:
        uuids = {share.uuid for one in chosen for share in one.shares}
        return frozenset(self.stock.owners_on(owners, uuids))


def given_of(assignment: Assignment) -> list[GivenPods]:
    """Counts and flavors of an assignment's pod sets."""
    return [
        GivenPods(one.name, one.count, {name: given.flavor for name, given in one.flavors.items()})
        for one in assignment.pod_sets
    ]
