"""Preemption without fair sharing: victims within the own queue, and in queues that borrow.

Candidates of other queues are those that reclaimWithinCohort permits, in two kinds. Where the
request fits the quota of the subtree below the cohort in which both queues meet, the workload has
the advantage, and the other queue's candidates may leave in every attempt (hierarchical reclaim).
Elsewhere they may leave in an attempt without borrowing, and in one with borrowing only below the
priority that borrowWithinCohort sets. Candidates are evaluated one by one, since most searches end
after a few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import PreemptionPolicy
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.preemption.search import (
    PreemptionContext,
    Removed,
    fill_back,
    may_preempt_within_queue,
)
from queuecontroller.scheduler.quota.holders import Ranked
from queuecontroller.scheduler.quota.tree import QuotaNode

_NO_PRIORITY: Final = -(1 << 40)
"""Below every priority, which has 32 bits."""


def classic_targets(context: PreemptionContext, settings: EngineSettings) -> list[Target]:
    """Return the victims; empty if the request fits in no attempt. The tree is left unchanged."""
    candidates = _Candidates(context)
    for may_borrow in _attempts(context, candidates):
        removed = [] if may_borrow else _own_first(context, candidates)
        if not removed:
            removed = _one_by_one(context, candidates.offers(may_borrow), may_borrow)
        for one in removed:
            one.node.add_usage(one.info.usage)
        if removed:
            return [Target(one.info, one.reason) for one in removed]
    return []


def _one_by_one(
    context: PreemptionContext, offers: Iterator[Removed], may_borrow: bool
) -> list[Removed]:
    """Victims, removed from the tree; empty if even all candidates together are not enough."""
    removed: list[Removed] = []
    for one in offers:
        one.node.remove_usage(one.info.usage)
        removed.append(one)
        if context.fits(may_borrow):
            return fill_back(context, removed, may_borrow)
    for one in removed:
        one.node.add_usage(one.info.usage)
    return []


def _own_first(context: PreemptionContext, candidates: _Candidates) -> list[Removed]:
    """The result of `_one_by_one` without borrowing, found sooner; empty: `_one_by_one` decides.

    While the request exceeds what is left of the queue's own quota, removing other queues'
    workloads does not help, but the search in order removes all of them before the first own one,
    and puts most back. So victims of the own queue are chosen first, by the own quota alone, and
    then other queues' workloads in order until the request fits. The result is the same: more room
    never makes a request fit less, and other queues' borrowing does not depend on the own queue.
    """
    node = context.queue.node
    if any(info.evicted for info in candidates.own):
        return []  # evicted workloads come before those of other queues
    offers = candidates.own_offers(evicted=False)
    own: list[Removed] = []
    while context.borrows():
        one = next(offers)  # it was checked before that there are enough
        node.remove_usage(one.info.usage)
        own.append(one)
    if not own:
        return []
    for one in own[-2::-1]:
        node.add_usage(one.info.usage)
        if context.borrows():
            node.remove_usage(one.info.usage)
        else:
            own.remove(one)
    if context.fits(may_borrow=False):
        return own
    offers = chain.from_iterable(
        candidates.others_offers(evicted, may_borrow=False) for evicted in (True, False)
    )
    others = _one_by_one(context, offers, may_borrow=False)
    if others:
        return others + own
    for one in own:
        node.add_usage(one.info.usage)
    return []


def _attempts(context: PreemptionContext, candidates: _Candidates) -> tuple[bool, ...]:
    """The value of `may_borrow` in each attempt, in order."""
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


class _Source:
    """Another queue that borrows, and its candidates by rank."""

    __slots__ = ("advantaged", "between", "node", "parts", "ranked")

    def __init__(
        self,
        node: QuotaNode,
        levels: Mapping[QuotaNode, bool],
        context: PreemptionContext,
        below: int | None,
    ) -> None:
        self.node = node
        self.between: list[QuotaNode] | None = None
        """Cohorts between the queue and the meeting point; None if there are none."""
        meeting = node.path[1]
        if meeting not in levels:
            at = next(at for at, above in enumerate(node.path) if above in levels)
            self.between, meeting = list(node.path[1:at]), node.path[at]
        self.advantaged = levels[meeting]
        """True if the workload has the advantage over it at their meeting point in the tree."""
        ranked = self.ranked = context.cache.holders.of(node, context.frs)
        if ranked and context.cache.is_by_usage(context.cache.queues[node.name]):
            lower = [one for one in ranked if below is None or one[0][1] < below]
            ranked, below = _by_usage(context, lower), None
            self.ranked = ranked
        split, size = 0, len(ranked)
        if ranked and not ranked[0][0][0]:
            split = bisect_left(ranked, True, key=_is_not_evicted)
        first, last = split, size
        if below is not None:
            first = bisect_left(ranked, below, 0, split, key=_priority)
            last = bisect_left(ranked, below, split, size, key=_priority)
        self.parts = ((split, last), (0, first))
        """Begin and end in the list: of the candidates not evicted yet, then of the evicted."""


class _Candidates:
    """Candidates in order: those evicted already, then the rest. Each part begins with queues that
    the workload has the advantage over, then come the other queues, then its own."""

    __slots__ = ("_below", "_borrowers", "_context", "_kinds", "_protected", "own")

    def __init__(self, context: PreemptionContext) -> None:
        self._context = context
        self._protected = context.protects(context.cache.protection.reclaim_ns)
        self.own = _own_candidates(context)
        self._kinds: dict[bool, list[_Source]] = {True: [], False: []}
        """Sources by the advantage of the workload over the queue."""
        self._below = _goes_while_borrowing_below(context)
        self._borrowers = context.queue.node.root.borrowers
        levels = _levels(context)
        if not levels:
            return
        lower_only = context.queue.spec.preemption.reclaim_within_cohort is not PreemptionPolicy.ANY
        below = context.info.priority if lower_only else None
        own = context.queue.node
        for node in own.root.borrowing(context.frs):
            if node is own:
                continue
            source = _Source(node, levels, context, below)
            if not source.between or self._borrows(source):
                self._kinds[source.advantaged].append(source)

    def _borrows(self, source: _Source) -> bool:
        """True if the queue and every cohort between it and the meeting point use more than their
        own quota of a requested resource."""
        frs = self._context.frs
        for fr in frs:
            if source.node in self._borrowers.get(fr, ()):
                break
        else:
            return False
        between = source.between
        return not between or not any(cohort.is_within_nominal(frs) for cohort in between)

    def may_make_room_within_quota(self) -> bool:
        """True if the own queue has enough candidates for the workload not to borrow at all.
        Otherwise an attempt without borrowing cannot succeed."""
        node = self._context.queue.node
        return not any(
            node.borrowing_with(fr, amount - sum(info.usage.get(fr, 0) for info in self.own))
            for fr, amount in self._context.usage.items()
        )

    def has(self, *, advantaged: bool) -> bool:
        apart, protected = self._context.cache.set_apart, self._protected
        return any(
            source.ranked[at][1].key not in apart
            and not (protected and protected(source.ranked[at][1]))
            for source in self._kinds[advantaged]
            for begin, end in source.parts
            for at in range(begin, end)
        )

    def offers(self, may_borrow: bool) -> Iterator[Removed]:
        """Candidates, checked when they are reached: earlier ones may have ended the borrowing."""
        for evicted in (True, False):
            yield from self.others_offers(evicted, may_borrow)
            yield from self.own_offers(evicted)

    def own_offers(self, evicted: bool) -> Iterator[Removed]:
        node = self._context.queue.node
        for info in self.own:
            if info.evicted is evicted:
                yield Removed(info, node, PreemptionReason.IN_CLUSTER_QUEUE)

    def others_offers(self, evicted: bool, may_borrow: bool) -> Iterator[Removed]:
        reclaimed = PreemptionReason.IN_COHORT_RECLAMATION
        for node, info in self._others(evicted, advantaged=True):
            yield Removed(info, node, reclaimed)
        for node, info in self._others(evicted, advantaged=False):
            if info.priority < self._below:
                reason = PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING
                yield Removed(info, node, reason)
            elif not may_borrow:
                yield Removed(info, node, reclaimed)
            elif self._context.cache.history is None:
                return  # all others of this kind have this priority or a higher one

    def _others(self, evicted: bool, advantaged: bool) -> Iterator[tuple[QuotaNode, WorkloadInfo]]:
        """Candidates of all queues of one kind, by rank. A queue that borrows no longer is dropped:
        nothing that a search does makes it borrow again."""
        heap = []
        for source in self._kinds[advantaged]:
            begin, end = source.parts[evicted]
            if begin < end:
                heap.append((source.ranked[begin], begin, end, source))
        heapify(heap)
        apart, protected = self._context.cache.set_apart, self._protected
        while heap:
            (_, info), at, end, source = heap[0]
            borrows = self._borrows(source)
            at += 1
            if borrows and at < end:
                heapreplace(heap, (source.ranked[at], at, end, source))
            else:
                heappop(heap)
            if borrows and info.key not in apart and not (protected and protected(info)):
                yield source.node, info


def _is_not_evicted(entry: Ranked) -> bool:
    """True if the workload is not evicted yet: the first part of its rank."""
    return entry[0][0]


def _priority(entry: Ranked) -> int:
    return entry[0][1]


def _own_candidates(context: PreemptionContext) -> list[WorkloadInfo]:
    if context.queue.spec.preemption.within_cluster_queue is PreemptionPolicy.NEVER:
        return []
    apart = context.cache.set_apart
    ranked = context.cache.holders.of(context.queue.node, context.frs)
    if context.cache.is_by_usage(context.queue):
        ranked = _by_usage(context, ranked)
    protected = context.protects(context.cache.protection.within_queue_ns)
    return [
        info
        for _, info in ranked
        if may_preempt_within_queue(context, info)
        and info.key not in apart
        and not (protected and protected(info))
    ]


def _by_usage(context: PreemptionContext, ranked: Sequence[Ranked]) -> list[Ranked]:
    """Candidates of the LocalQueue that used most first, among the evicted and among the others."""
    has_used = context.cache.has_used
    return sorted(ranked, key=lambda one: (one[0][0], -has_used(one[1])))


def _levels(context: PreemptionContext) -> dict[QuotaNode, bool]:
    """The cohorts above the queue, each with True if the request fits the quota of the subtree
    below it: the workload then has the advantage over all queues that meet its own there. Empty
    without a cohort, or if reclaimWithinCohort is Never."""
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
    """True if the usage is within the subtree's quota, and the rest that must come from above."""
    fits = not any(node.borrowing_with(fr, amount) for fr, amount in usage.items())
    rest = {fr: max(0, amount - node.local_available(fr)) for fr, amount in usage.items()}
    return fits, rest


def _goes_while_borrowing_below(context: PreemptionContext) -> int:
    """The priority below which candidates may leave while the workload borrows, where it has no
    advantage over their queue. All others there leave only in an attempt without borrowing."""
    policy = context.queue.spec.preemption.borrow_within_cohort
    if policy.policy is PreemptionPolicy.NEVER:
        return _NO_PRIORITY
    if policy.max_priority_threshold is None:
        return context.info.priority
    return min(context.info.priority, policy.max_priority_threshold + 1)
