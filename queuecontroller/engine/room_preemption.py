"""Whether a workload that can have quota finds room too, and who would have to leave for that.

Preempting is only worth it if there is room afterwards, so targets chosen for quota are looked at
once more with the nodes in mind; where they free too little, or quota was there but no room, others
may be added. Who may be is decided as for quota: of the own queue by withinClusterQueue, of others
that borrow by reclaimWithinCohort, and those only while the workload stays within the queue's own
quota. They are taken in the order of preemption, as far as leaving makes room at all where they
stand; the shortest run of them that does is searched by growing it and by bisection, and of it only
those stay chosen who stand where the workload would go and cannot be spared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .assignment import Assignment, Mode
from .cache import Cache
from .cluster_queue import ClusterQueueState
from .model import PreemptionPolicy, PreemptionReason, WorkloadKey
from .preemption import PreemptionContext, may_preempt_within_queue, may_reclaim, ordered
from .room import Room, Verdict
from .workload_info import Target, WorkloadInfo

FIRST_RUN: Final = 8
"""So many are tried at first: most who preempt need few to leave."""
GROWTH: Final = 4
Judgement = tuple[Assignment, Sequence[Target]]


class RoomSearch:
    def __init__(self, cache: Cache, room: Room, now_ns: int) -> None:
        self._cache = cache
        self._room = room
        self._now_ns = now_ns

    def judge(
        self,
        queue: ClusterQueueState,
        info: WorkloadInfo,
        assignment: Assignment,
        targets: Sequence[Target],
    ) -> Judgement:
        """The assignment, and who has to go for it with room in mind; NO_FIT when nothing helps."""
        question = _Question(self._cache, self._room, queue, info, assignment)
        verdict = question.look(targets)
        if not verdict.refusal:
            return assignment, targets
        assignment.no_room, assignment.frees = verdict.refusal, verdict.frees
        more: Sequence[Target] = ()
        if verdict.preempting_helps:
            more = question.targets(targets, self._now_ns)
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
    ) -> None:
        self._cache = cache
        self._room = room
        self._queue = queue
        self._info = info
        self._assignment = assignment
        self._gone: frozenset[WorkloadKey] = frozenset(cache.set_apart) | gone_with(info)

    def look(self, targets: Sequence[Target]) -> Verdict:
        return self._room.look(
            self._info, self._assignment, self._gone | {one.info.key for one in targets}
        )

    def targets(self, first: Sequence[Target], now_ns: int) -> list[Target]:
        """`first`, who go for the quota, and the fewest others; nobody when all are too few."""
        others = self._candidates(first, now_ns)
        low, high = 1, FIRST_RUN  # the shortest run that does is in [low, high]
        while high < len(others) and self.look([*first, *others[:high]]).refusal:
            low, high = high + 1, high * GROWTH
        if high >= len(others):
            high = len(others)
            if not others or self.look([*first, *others]).refusal:
                return []
        while low < high:
            middle = (low + high) // 2
            if self.look([*first, *others[:middle]]).refusal:
                low = middle + 1
            else:
                high = middle
        run = others[:low]
        verdict = self.look([*first, *run])
        chosen = [*first, *(one for one in run if one.info.key in verdict.in_the_way)]
        if len(chosen) < low + len(first) and self.look(chosen).refusal:
            chosen = [*first, *run]  # several pods are set one after the other, by rules of thumb
        for one in reversed(chosen[:]):
            rest = [other for other in chosen if other is not one]
            if self._quota_fits(rest) and not self.look(rest).refusal:
                chosen = rest
        return chosen

    def _candidates(self, first: Sequence[Target], now_ns: int) -> list[Target]:
        usage = self._assignment.usage
        frs = frozenset(usage)
        context = PreemptionContext(self._cache, self._queue, self._info, frs, usage, now_ns)
        taken = {one.info.key for one in first} | self._gone
        own, nodes = self._queue.node, self._cache.queues
        removed = [one.info for one in first]
        for info in removed:
            context.remove(info)
        found: list[Target] = []
        try:
            infos = [
                info
                for info in self._cache.holders.up_to(own, frs, self._info.priority)
                if may_preempt_within_queue(context, info)
            ]
            policy = self._queue.spec.preemption.reclaim_within_cohort
            if policy is not PreemptionPolicy.NEVER and not context.borrows():
                infos += [
                    info
                    for node in own.root.borrowing(frs)
                    if node is not own
                    for _, info in self._cache.holders.of(node, frs)
                    if may_reclaim(context, info)
                ]
            keys = [info.key for info in infos if info.key not in taken]
            useful = set(self._room.useful(self._info, self._assignment, taken, keys))
            infos = [info for info in infos if info.key in useful]
            for info in ordered(infos, self._queue.name, now_ns, self._cache):
                node = nodes[info.cluster_queue].node
                if node is own:
                    found.append(Target(info, PreemptionReason.IN_CLUSTER_QUEUE))
                    continue
                if node.is_within_nominal(frs):
                    continue  # it has given back all that it borrowed
                context.remove(info)
                removed.append(info)
                found.append(Target(info, PreemptionReason.IN_COHORT_RECLAMATION))
        finally:
            for info in removed:
                context.put_back(info)
        return found

    def _quota_fits(self, without: Sequence[Target]) -> bool:
        nodes = self._cache.queues
        for one in without:
            nodes[one.info.cluster_queue].node.remove_usage(one.info.usage)
        fits = self._queue.node.fits(self._assignment.usage)
        for one in without:
            nodes[one.info.cluster_queue].node.add_usage(one.info.usage)
        return fits


def gone_with(info: WorkloadInfo) -> frozenset[WorkloadKey]:
    """Who leaves when it starts: the slice it grows out of."""
    replaces = info.workload.replaces
    return frozenset((replaces,)) if replaces is not None else frozenset()
