"""The port through which a cycle asks whether there is room on the nodes, and takes it.

Without one, quota alone decides, as in Kueue. What is behind it, and in what detail it knows the
nodes, is none of the engine's business: it says which workload, with which flavors and counts, and
who is to be thought gone.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.objects import (
    PlacedPods,
    TopologyAssignment,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import PendingReason
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.preemption.candidates import Candidates, Turn


@dataclass(frozen=True, slots=True)
class Verdict:
    refusal: str = ""
    """Why there is no room now; empty: there is."""
    in_the_way: frozenset[WorkloadKey] = frozenset()
    """Of those thought gone, who holds a part of the GPUs where it would go."""
    frees: frozenset[WorkloadKey] = frozenset()
    """Those without quota, paused, whose memory it takes: they have to be stopped for good."""
    preempting_helps: bool = True
    """False where it only has to wait, for such memory."""
    reason: PendingReason = PendingReason.WAITING_FOR_PLACEMENT
    """Of a refusal."""
    topology: Mapping[str, TopologyAssignment] = field(default_factory=dict)
    """By pod set: where its pods go, in a topology's words; told when it is kept."""
    places: Mapping[str, tuple[PlacedPods, ...]] = field(default_factory=dict)
    """The same of devices."""


@dataclass(frozen=True, slots=True)
class Opening:
    """There may be room once everybody has gone whose turn is no later."""

    turn: Turn
    who: tuple[tuple[Turn, WorkloadInfo], ...]
    """Of them those who stand where the workload could be, in order."""


_LEAST_STEPS: Final = 500
"""Every search that is begun takes so many, so that it gets on."""
_FOR_EVER: Final = 1 << 62


class SearchDeferred(Exception):
    """The cycle has searched as much as it may; the next one goes on."""

    def __init__(self, assignment: Assignment | None = None) -> None:
        super().__init__()
        self.assignment = assignment
        """What there is quota for."""


@dataclass(slots=True)
class SearchBudget:
    """What a cycle spends on searches, in steps: one is what a bound for one node takes, a few
    microseconds."""

    limit: int
    spent: int = 0
    _goes_until: int = 0

    @property
    def is_over(self) -> bool:
        return self.spent >= self.limit

    def begin(self, *, may_stop: bool) -> None:
        """A search begins. Whether it may be given up in the middle: what it has found out about
        nodes is kept, but it has to end some day."""
        least = self.spent + _LEAST_STEPS
        self._goes_until = max(self.limit, least) if may_stop else _FOR_EVER

    def take(self, steps: int) -> None:
        self.spent += steps

    def pause(self) -> None:
        """Called where a search may be given up. Raises SearchDeferred."""
        if self.spent >= self._goes_until:
            raise SearchDeferred


class FillBack(Protocol):
    def may_stay(self, key: WorkloadKey) -> bool:
        """Whether there may be room without its leaving too, as things are. From then on it stays.
        False: there surely is none."""


class Room(Protocol):
    @property
    def generation(self) -> int:
        """Grows with every change of what is where."""

    @property
    def freed(self) -> int:
        """Grows when what found no room may find some now."""

    def shape(self, workload: Workload) -> Hashable:
        """All that decides about its room and is not in its pod sets: workloads that are equal in
        both share their fate."""

    def look(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        """Whether there is room for all its pods, with `gone` out of the way. What the workload
        itself keeps already counts as free. Changes nothing."""

    def openings(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        candidates: Candidates,
        budget: SearchBudget,
    ) -> Iterator[Opening]:
        """Until which turns those who may be made to go have to go, for there to be room: sooner
        ones first, before the first of which there surely is none. Changes nothing; to be used up
        before anything changes. Raises SearchDeferred where the search may be given up."""

    def fill_back(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        gone: Collection[WorkloadKey],
        who: Collection[WorkloadKey],
    ) -> FillBack:
        """Minimises `who`. Precondition: room(gone + who) and not room(gone). Changes nothing; to
        be used up before anything changes."""

    def restored(self, workload: Workload) -> None:
        """It holds quota as was stored somewhere: what its admission says of its room is taken."""

    def moved(self, key: WorkloadKey) -> None:
        """It got or lost its quota, or its place in the order of those who have some."""

    def keep(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        """The same, and the room is kept for it from now on, in place of what it kept before.
        With `gone` it is where they still are: nobody else gets it when they leave."""

    def release(self, key: WorkloadKey) -> None:
        """It needs what was kept for it no longer, if anything was."""
