"""The port through which a cycle checks and reserves room on the nodes.

Without one, quota alone decides, as in Kueue. The scheduler does not depend on how an
implementation models the nodes: it passes the workload, with its flavors and counts, and the
workloads that are assumed to be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
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
    """Reason why there is no room now; empty: there is."""
    in_the_way: frozenset[WorkloadKey] = frozenset()
    """Workloads, among those assumed gone, that hold a part of the GPUs it would get."""
    frees: frozenset[WorkloadKey] = frozenset()
    """Paused workloads without quota whose memory it takes; they have to be stopped."""
    preempting_helps: bool = True
    """False if it only has to wait, for such memory."""
    reason: PendingReason = PendingReason.WAITING_FOR_PLACEMENT
    """Reason of a refusal."""
    topology: Mapping[str, TopologyAssignment] = field(default_factory=dict)
    """Topology assignments by pod set, set when the room is reserved."""
    places: Mapping[str, tuple[PlacedPods, ...]] = field(default_factory=dict)
    """Device places by pod set, set when the room is reserved."""


@dataclass(frozen=True, slots=True)
class RoomMove:
    """Move of a running workload to other GPUs, which would make room for another one."""

    workload: WorkloadKey
    source: str
    """Node and GPUs where it is, as text for users."""
    target: str


@dataclass(frozen=True, slots=True)
class Opening:
    """There may be room once all candidates up to `turn` have left."""

    turn: Turn
    candidates: tuple[tuple[Turn, WorkloadInfo], ...]
    """The candidates up to `turn` that are on suitable nodes, in order."""


_LEAST_STEPS: Final = 500
"""Steps that every search gets even if the budget is spent, so that it progresses."""
_FOR_EVER: Final = 1 << 62


class SearchDeferred(Exception):
    """The cycle has used up its search steps; the next one continues."""

    def __init__(self, assignment: Assignment | None = None) -> None:
        super().__init__()
        self.assignment = assignment
        """The assignment that there is quota for."""


@dataclass(slots=True)
class SearchBudget:
    """Search steps of a cycle: one is the cost of a bound for one node, a few microseconds."""

    limit: int
    spent: int = 0
    _goes_until: int = 0

    @property
    def is_over(self) -> bool:
        return self.spent >= self.limit

    def begin(self, *, may_stop: bool) -> None:
        """Begin a search. With `may_stop` it may be interrupted once the budget is spent: what it
        found about nodes is cached. Otherwise it runs to its end."""
        least = self.spent + _LEAST_STEPS
        self._goes_until = max(self.limit, least) if may_stop else _FOR_EVER

    def take(self, steps: int) -> None:
        self.spent += steps

    def pause(self) -> None:
        """Called where a search may be interrupted. Raises SearchDeferred."""
        if self.spent >= self._goes_until:
            raise SearchDeferred


class FillBack(Protocol):
    def may_stay(self, key: WorkloadKey) -> bool:
        """True if there may be room without this victim leaving, given the earlier answers; it then
        stays. False: there is certainly none."""


class Room(Protocol):
    @property
    def generation(self) -> int:
        """Counter that grows with every change of the nodes or of what they hold."""

    @property
    def freed(self) -> int:
        """Counter that grows when a request that found no room may find some."""

    def shape(self, workload: Workload) -> Hashable:
        """Everything that decides about room and is not in the pod sets: workloads that are equal
        in both have the same outcome."""

    def look(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        """Check for room for all its pods, with `gone` removed. What the workload itself holds
        counts as free. Changes nothing."""

    def moves(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        may_move: Callable[[WorkloadKey], bool] | None = None,
    ) -> tuple[RoomMove, ...]:
        """The cheapest moves after which there would be room; empty if none are known. Changes
        nothing. With `may_move` only those that may be made at once: of workloads for which it is
        true and whose owners permit it, at most one of each owner, and together of no more GPU
        memory than is requested."""

    def openings(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        candidates: Candidates,
        budget: SearchBudget,
    ) -> Iterator[Opening]:
        """Turns up to which candidates have to leave for there to be room: sooner ones first, and
        before the first there is certainly none. Changes nothing; to be used up before anything
        changes. Raises SearchDeferred where the search may be interrupted."""

    def fill_back(
        self,
        info: WorkloadInfo,
        assignment: Assignment,
        gone: Collection[WorkloadKey],
        who: Collection[WorkloadKey],
    ) -> FillBack:
        """Minimise `who`. Precondition: room(gone + who) and not room(gone). Changes nothing; to be
        used up before anything changes."""

    def restored(self, workload: Workload) -> None:
        """Restore a workload that holds quota from a store: take the room in its admission."""

    def moved(self, key: WorkloadKey) -> None:
        """Record that a workload got or lost its quota, or changed its position in the order."""

    def keep(
        self, info: WorkloadInfo, assignment: Assignment, gone: Collection[WorkloadKey]
    ) -> Verdict:
        """Check as `look` does, and reserve the room in place of an earlier reservation. With
        `gone` the reservation overlaps what the victims still hold: no other workload gets it when
        they leave."""

    def release(self, key: WorkloadKey) -> None:
        """Release the reservation of the workload, if it has one."""
