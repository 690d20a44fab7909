"""Preemption without fair sharing: own lower priorities, and quota lent to others.

Candidates of other queues come in two kinds. Where the wanted usage fits the quota of a subtree
the queue belongs to, whoever borrows from that subtree has to give way (hierarchical reclaim).
Elsewhere only lower priorities do, and only under borrowWithinCohort while borrowing oneself.
Candidates are looked at one by one, as the search goes on: most searches end after a few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heapreplace

from .holders import Ranked
from .model import PreemptionPolicy, PreemptionReason
from .preemption import (
    PreemptionContext,
    fill_back,
    may_preempt_within_queue,
    may_reclaim,
)
from .quota_tree import Fr, QuotaNode
from .settings import EngineSettings
from .workload_info import Target, WorkloadInfo


class Variant(Enum):
    """Why a candidate of another queue may go, with the reason it is told."""

    HIERARCHICAL_RECLAIM = PreemptionReason.IN_COHORT_RECLAMATION
    RECLAIM_WITHOUT_BORROWING = "only while not borrowing"
    RECLAIM_WHILE_BORROWING = PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING

    @property
    def reason(self) -> PreemptionReason:
        if self is Variant.RECLAIM_WITHOUT_BORROWING:
            return PreemptionReason.IN_COHORT_RECLAMATION
        return PreemptionReason(self.value)


def classic_targets(context: PreemptionContext, settings: EngineSettings) -> list[Target]:
    candidates = _Candidates(context)
    for may_borrow in _attempts(context, candidates):
        targets: list[Target] = []
        for target in candidates.targets(may_borrow):
            context.remove(target.info)
            targets.append(target)
            if context.fits(may_borrow):
                targets = fill_back(context, targets, may_borrow)
                _restore(context, targets)
                return targets
        _restore(context, targets)
    return []


def _restore(context: PreemptionContext, targets: list[Target]) -> None:
    for target in targets:
        context.put_back(target.info)


def _attempts(context: PreemptionContext, candidates: _Candidates) -> tuple[bool, ...]:
    """Whether the workload may borrow, by attempt."""
    forbidden = not context.queue.spec.preemption.may_borrow_while_preempting
    node = context.queue.node
    if forbidden and any(node.used(fr) >= node.nominal.get(fr, 0) for fr in context.frs):
        return (True,)
    if not candidates.may_make_room_within_quota():
        return (True,)
    advantaged = candidates.has(advantaged=True)
    if not advantaged and not candidates.has(advantaged=False):
        return (True,)
    if forbidden and not advantaged:
        return (False, True)
    return (True, False)


class _Candidates:
    """Who may go, in order: the evicted of each kind first, then the others of each."""

    __slots__ = ("_context", "_kinds", "_own")

    def __init__(self, context: PreemptionContext) -> None:
        self._context = context
        self._own = _own_candidates(context)
        self._kinds: dict[bool, list[Sequence[Ranked]]] = {True: [], False: []}
        """Holders of each borrowing queue, by whether the workload has the advantage over it."""
        levels = _levels(context)
        if not levels:
            return
        meetings = context.queue.meetings
        node, holders = context.queue.node, context.cache.holders
        for queue in node.root.borrowing(context.frs):
            if queue is node:
                continue
            meeting = meetings.get(queue)
            if meeting is None:
                meeting = meetings[queue] = next(above for above in queue.path if above in levels)
            if _borrows(queue, meeting, context.frs):
                ranked = holders.of(queue, context.frs)
                if ranked:
                    self._kinds[levels[meeting]].append(ranked)

    def may_make_room_within_quota(self) -> bool:
        """Whether enough of the own queue's may go for the workload not to borrow at all. If not,
        there is no point in counting what others could give back."""
        context = self._context
        node = context.queue.node
        return all(
            amount - sum(info.usage.get(fr, 0) for info in self._own)
            <= node.subtree_quota.get(fr, 0) - node.used(fr)
            for fr, amount in context.usage.items()
        )

    def targets(self, may_borrow: bool) -> Iterator[Target]:
        """Each is checked when its turn comes: earlier ones may have ended the borrowing."""
        for evicted in (True, False):
            for advantaged in (True, False):
                for info, variant in self._others(evicted, advantaged):
                    if may_borrow and variant is Variant.RECLAIM_WITHOUT_BORROWING:
                        continue
                    yield Target(info, variant.reason)
            for info in self._own:
                if info.evicted is evicted:
                    yield Target(info, PreemptionReason.IN_CLUSTER_QUEUE)

    def has(self, *, advantaged: bool) -> bool:
        return any(True for evicted in (True, False) for _ in self._others(evicted, advantaged))

    def _others(self, evicted: bool, advantaged: bool) -> Iterator[tuple[WorkloadInfo, Variant]]:
        """Of all queues of one kind, by rank. A queue is dropped as soon as one of its holders may
        not go: it borrows no longer, or its next ones have too high a priority as well."""
        heap = list(_fronts(self._kinds[advantaged], evicted))
        heapify(heap)
        context = self._context
        queues, meetings = context.cache.queues, context.queue.meetings
        apart = context.cache.set_apart
        while heap:
            (_, info), at, end, ranked = heap[0]
            queue = queues[info.cluster_queue].node
            variant = None
            if _borrows(queue, meetings[queue], context.frs):
                variant = _variant(context, info, advantaged)
            if variant is None or at + 1 == end:
                heappop(heap)
            else:
                heapreplace(heap, (ranked[at + 1], at + 1, end, ranked))
            if variant is not None and info.key not in apart:
                yield info, variant


_Front = tuple[Ranked, int, int, Sequence[Ranked]]
"""The next one, its index, where the part of the list ends, the list."""


def _fronts(lists: Iterable[Sequence[Ranked]], evicted: bool) -> Iterator[_Front]:
    for ranked in lists:
        split = 0
        if not _goes_on(ranked[0]):
            split = bisect_left(ranked, True, key=_goes_on)
        begin, end = (0, split) if evicted else (split, len(ranked))
        if begin < end:
            yield ranked[begin], begin, end, ranked


def _goes_on(entry: Ranked) -> bool:
    """The first part of a rank: not evicted yet."""
    return entry[0][0]


def _borrows(node: QuotaNode, meeting: QuotaNode, frs: frozenset[Fr]) -> bool:
    """Whether the queue and every cohort between it and the meeting use more than their own."""
    for above in node.path:
        if above is meeting:
            break
        if above.is_within_nominal(frs):
            return False
    return True


def _own_candidates(context: PreemptionContext) -> list[WorkloadInfo]:
    if context.queue.spec.preemption.within_cluster_queue is PreemptionPolicy.NEVER:
        return []
    apart = context.cache.set_apart
    return [
        info
        for _, info in context.cache.holders.of(context.queue.node, context.frs)
        if may_preempt_within_queue(context, info) and info.key not in apart
    ]


def _levels(context: PreemptionContext) -> dict[QuotaNode, bool]:
    """The cohorts over the queue, and whether what it wants fits the quota below each: then it has
    the advantage over everyone who meets it there. Empty when it reclaims nothing."""
    node = context.queue.node
    reclaim = context.queue.spec.preemption.reclaim_within_cohort
    if node.parent is None or reclaim is PreemptionPolicy.NEVER:
        return {}
    levels: dict[QuotaNode, bool] = {}
    advantaged, rest = _fits_quota(node, context.usage)
    for cohort in node.path[1:]:
        levels[cohort] = advantaged
        if not advantaged:
            advantaged, rest = _fits_quota(cohort, rest)
    return levels


def _fits_quota(node: QuotaNode, usage: Mapping[Fr, int]) -> tuple[bool, dict[Fr, int]]:
    """Whether the usage is within the subtree's quota, and what is left to find higher up."""
    fits = not any(node.borrowing_with(fr, amount) for fr, amount in usage.items())
    rest = {fr: max(0, amount - node.local_available(fr)) for fr, amount in usage.items()}
    return fits, rest


def _variant(context: PreemptionContext, info: WorkloadInfo, has_advantage: bool) -> Variant | None:
    if not may_reclaim(context, info):
        return None
    if has_advantage:
        return Variant.HIERARCHICAL_RECLAIM
    borrow = context.queue.spec.preemption.borrow_within_cohort
    if borrow.policy is PreemptionPolicy.NEVER:
        return Variant.RECLAIM_WITHOUT_BORROWING
    threshold = borrow.max_priority_threshold
    above = threshold is not None and info.priority > threshold
    if above or info.priority >= context.info.priority:
        return Variant.RECLAIM_WITHOUT_BORROWING
    return Variant.RECLAIM_WHILE_BORROWING
