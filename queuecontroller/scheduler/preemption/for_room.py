"""Search for room for a workload that fits the quota, and for the victims that this needs.

Preempting is only useful if there is room afterwards. So the victims chosen for quota are checked
against the nodes; where they free too little, or quota was available but no room, more are added.

1. Candidates, in the order of preemption: those of the own queue that withinClusterQueue permits
and, while the workload stays within the queue's own quota, those of borrowing queues that
reclaimWithinCohort permits. Candidates that make no room by leaving are left out.

2. Prefix: the shortest beginning of that order such that there is room once all of it has left.

3. Minimal set: of the prefix, those on the GPUs that the workload would get, less those that
fill-back finds unnecessary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Final

from queuecontroller.scheduler.model.assignment import Assignment, Mode
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.preemption.candidates import Candidates, Turn
from queuecontroller.scheduler.preemption.room import Room, SearchBudget, SearchDeferred, Verdict
from queuecontroller.scheduler.preemption.search import PreemptionContext
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState

Judgement = tuple[Assignment, Sequence[Target]]


_LOOK_STEPS: Final = 50
"""Steps for each pod."""
_MOVE_STEPS: Final = 3_000
"""Steps for a search for moves: no other search begins in the same cycle."""
_MAX_TIMES: Final = 8
"""A search that was deferred this often runs to its end at once: the nodes change faster than it
progresses."""


class RoomSearch:
    def __init__(
        self,
        cache: Cache,
        room: Room,
        now_ns: int,
        settings: EngineSettings,
        victims_of: Callable[[WorkloadKey], Collection[WorkloadKey]],
    ) -> None:
        """`victims_of` returns the workloads that a pending one has preempted."""
        self._cache = cache
        self._room = room
        self._now_ns = now_ns
        self._victims_of = victims_of
        self._consolidates = settings.consolidation
        self._budget = SearchBudget(settings.room_steps_per_cycle)
        self._may_search = True

    def begin(self, info: WorkloadInfo) -> None:
        """Begin the evaluation of a workload: all its searches run, or none."""
        self._may_search = not self._budget.is_over
        self._budget.begin(may_stop=info.deferrals < _MAX_TIMES)

    def judge(
        self,
        queue: ClusterQueueState,
        info: WorkloadInfo,
        assignment: Assignment,
        targets: Sequence[Target],
    ) -> Judgement:
        """The assignment, and its victims once room is considered; NO_FIT when nothing helps.
        Raises SearchDeferred when a search is necessary and the cycle has used up its steps."""
        question = _Question(self._cache, self._room, queue, info, assignment, self._budget)
        verdict = question.look(targets)
        if not verdict.refusal:
            return assignment, targets
        assignment.no_room, assignment.frees = verdict.refusal, verdict.frees
        assignment.no_room_reason = verdict.reason
        more: Sequence[Target] = ()
        has_quota = assignment.mode is Mode.FIT
        if verdict.preempting_helps:
            if not self._may_search:
                raise SearchDeferred(assignment)
            try:
                more = question.targets(targets, self._now_ns)
            except SearchDeferred:
                raise SearchDeferred(assignment) from None
            if not more and has_quota and self._consolidates:
                more = question.moves(self._victims_of(info.key))
        assignment.mode = Mode.PREEMPT if more else Mode.NO_FIT
        return assignment, more


class _Question:
    def __init__(
        self,
        cache: Cache,
        room: Room,
        queue: ClusterQueueState,
        info: WorkloadInfo,
        assignment: Assignment,
        budget: SearchBudget,
    ) -> None:
        self._cache = cache
        self._room = room
        self._budget = budget
        self._queue = queue
        self._info = info
        self._assignment = assignment
        self._gone: frozenset[WorkloadKey] = frozenset(cache.set_apart) | gone_with(info)

    def look(self, targets: Sequence[Target]) -> Verdict:
        pods = sum(one.count for one in self._assignment.pod_sets)
        self._budget.take(_LOOK_STEPS * pods)
        return self._room.look(
            self._info, self._assignment, self._gone | {one.info.key for one in targets}
        )

    def targets(self, first: Sequence[Target], now_ns: int) -> list[Target]:
        """`first`, the victims for the quota, and the fewest others; empty without room."""
        run, verdict = self._shortest_run(first, now_ns)
        if not run:
            return []
        chosen = [*first, *(one for one in run if one.info.key in verdict.in_the_way)]
        if len(chosen) < len(run) + len(first) and self.look(chosen).refusal:
            chosen = [*first, *run]  # pods are placed one by one, by heuristics
        keys = [one.info.key for one in chosen]
        trial = self._room.fill_back(self._info, self._assignment, self._gone, keys)
        needed = self._needed(chosen, lambda one, rest: trial.may_stay(one.info.key))
        if len(needed) == len(chosen) or not self.look(needed).refusal:
            return needed
        return self._needed(chosen, lambda one, rest: not self.look([*rest]).refusal)

    def moves(self, victims: Collection[WorkloadKey]) -> list[Target]:
        """Workloads to restart on other GPUs, after which there is room; empty if there are none
        that may be restarted for this one. Those of `victims` that still run are awaited first, and
        all that leave for a consolidation: a new leader does not know for which workload."""
        evicted = self._cache.holders.evicted()
        leaving = _as_targets(
            one for one in evicted if one.key in victims or one.workload.is_moving
        )
        if leaving and not self.look(leaving).refusal:
            return leaving
        self._budget.take(_MOVE_STEPS)
        moves = self._room.moves(self._info, self._assignment, self._may_move)
        holders = (self._cache.holders.at(one.workload) for one in moves)
        found = _as_targets(ranked[1] for ranked in holders if ranked is not None)
        return [] if not found or self.look(found).refusal else found

    def _may_move(self, key: WorkloadKey) -> bool:
        """False for a workload of a higher priority, one of a class that is never preempted, and
        one that leaves anyway."""
        ranked = self._cache.holders.at(key)
        if ranked is None or key in self._gone:
            return False
        info = ranked[1]
        never = info.workload.priority_class in self._cache.protection.classes
        return not info.evicted and not never and info.priority <= self._info.priority

    def _needed(
        self, chosen: Sequence[Target], may_stay: Callable[[Target, Collection[Target]], bool]
    ) -> list[Target]:
        """The fill-back: `chosen` without those that need not leave, the last one tried first.
        `may_stay` is called with each of them."""
        nodes = [self._cache.queues[one.info.cluster_queue].node for one in chosen]
        rest = dict(enumerate(chosen))
        for node, one in zip(nodes, chosen, strict=True):
            node.remove_usage(one.info.usage)
        try:
            for at in range(len(chosen) - 1, -1, -1):
                one = rest.pop(at)
                nodes[at].add_usage(one.info.usage)
                fits = self._queue.node.fits(self._assignment.usage)
                if not (fits and may_stay(one, rest.values())):
                    nodes[at].remove_usage(one.info.usage)
                    rest[at] = one
        finally:
            for at, one in rest.items():
                nodes[at].add_usage(one.info.usage)
        return [rest[at] for at in sorted(rest)]

    def _shortest_run(self, first: Sequence[Target], now_ns: int) -> tuple[list[Target], Verdict]:
        """The shortest run of candidates, in the order of preemption and on suitable nodes, such
        that there is room once they have left, and the verdict then; empty if there is none."""
        usage = self._assignment.usage
        context = PreemptionContext(
            self._cache, self._queue, self._info, frozenset(usage), usage, now_ns
        )
        taken = {one.info.key for one in first} | self._gone
        candidates = Candidates(context, [one.info for one in first], taken)
        nothing: tuple[list[Target], Verdict] = [], Verdict()
        if not candidates.queues:
            return nothing
        too_few: Turn | None = None
        for opening in self._room.openings(self._info, self._assignment, candidates, self._budget):
            run = [candidates.target(info) for _, info in opening.candidates]
            verdict = self.look([*first, *run]) if run else None
            if verdict is None or verdict.refusal:
                too_few = opening.turn
                continue
            if too_few is None:
                return run, verdict  # before the first opening there is no room
            low = bisect_right(opening.candidates, too_few, key=itemgetter(0)) + 1
            high = len(run)
            while low < high:  # the shortest run that does is in [low, high]
                middle = (low + high) // 2
                found = self.look([*first, *run[:middle]])
                if found.refusal:
                    low = middle + 1
                else:
                    high, verdict = middle, found
            return run[:high], verdict
        return nothing


def _as_targets(infos: Iterable[WorkloadInfo]) -> list[Target]:
    return [Target(info, PreemptionReason.CONSOLIDATION) for info in infos]


def gone_with(info: WorkloadInfo) -> frozenset[WorkloadKey]:
    """Workloads that end when it starts: the slice it replaces."""
    replaces = info.workload.replaces
    return frozenset((replaces,)) if replaces is not None else frozenset()
