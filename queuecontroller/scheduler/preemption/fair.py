"""Preemption under fair sharing: queues with the largest share lose workloads first.

Queues are visited from the root of the cohort tree down, always into the child with the largest
share. A strategy decides whether the visited queue's workload is a victim: it compares the shares
of two children of the lowest common cohort, the one above the preemptor and the one above the
target, as if the preemptor already ran. A preemptor that stays within its nominal quota reclaims
without comparison.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from queuecontroller.scheduler.model.objects import PreemptionPolicy
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings, FairPreemptionStrategy
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.preemption.search import (
    PreemptionContext,
    Removed,
    fill_back,
    may_preempt_within_queue,
    may_reclaim,
    order_key,
    ordered,
    uses_any,
)
from queuecontroller.scheduler.quota.shares import NO_SHARE, Share, dominant_share
from queuecontroller.scheduler.quota.tree import QuotaNode


def fair_targets(context: PreemptionContext, settings: EngineSettings) -> list[Target]:
    apart = context.cache.set_apart
    infos = (info for info in _candidates(context, settings) if info.key not in apart)
    candidates = ordered(infos, context.queue.name, context.now_ns, context.cache)
    if not candidates:
        return []
    # Shares are compared as they would be with the workload running.
    context.queue.node.add_usage(context.usage)
    search = _FairSearch(context, settings)
    fits = search.first(candidates)
    if not fits and len(settings.fair_strategies) > 1:
        fits = search.second()
    context.queue.node.remove_usage(context.usage)
    removed = search.removed
    if fits:
        removed = fill_back(context, removed, may_borrow=True)
    for one in removed:
        one.node.add_usage(one.info.usage)
    return [Target(one.info, one.reason) for one in removed] if fits else []


def _candidates(context: PreemptionContext, settings: EngineSettings) -> Iterator[WorkloadInfo]:
    protection = context.cache.protection
    protected = context.protects(protection.within_queue_ns)
    for info in context.queue.workloads.values():
        may = uses_any(info, context.frs) and may_preempt_within_queue(context, info)
        if may and not (protected and protected(info)):
            yield info
    node = context.queue.node
    reclaim = context.queue.spec.preemption.reclaim_within_cohort
    if node.parent is None or reclaim is PreemptionPolicy.NEVER:
        return
    takes_back = settings.fair_reclaim_within_nominal and _stays_within_nominal(context)
    protected = context.protects(
        protection.reclaim_ns if takes_back else protection.fair_sharing_ns
    )
    for other in node.root.borrowing(context.frs):
        if other is node:
            continue
        for info in context.cache.queues[other.name].workloads.values():
            may = uses_any(info, context.frs) and may_reclaim(context, info)
            if may and not (protected and protected(info)):
                yield info


def _stays_within_nominal(context: PreemptionContext) -> bool:
    """True if the queue is within its nominal quota with the workload running."""
    node = context.queue.node
    node.add_usage(context.usage)
    within = node.is_within_nominal(context.frs)
    node.remove_usage(context.usage)
    return within


class _Visits:
    """Decides which queue gives the next candidate."""

    def __init__(self, context: PreemptionContext, candidates: Iterable[WorkloadInfo]) -> None:
        self._context = context
        self._path = frozenset(context.queue.node.path)
        self._pruned: set[QuotaNode] = set()
        self.waiting: dict[str, deque[WorkloadInfo]] = {}
        for info in candidates:
            self.waiting.setdefault(info.cluster_queue, deque()).append(info)

    def drop(self, node: QuotaNode) -> None:
        self._pruned.add(node)

    def __iter__(self) -> Iterator[QuotaNode]:
        root = self._context.queue.node.root
        if not root.is_cohort:  # the queue stands alone
            while self.waiting.get(root.name) and root not in self._pruned:
                yield root
            return
        while root not in self._pruned:
            found = self._next(root)
            if found is not None:
                yield found

    def _share(self, node: QuotaNode) -> Share:
        return dominant_share(node, self._context.cache.numbers)

    def _next(self, cohort: QuotaNode) -> QuotaNode | None:
        """The queue to visit below `cohort`; None after pruning what has nothing to give."""
        queue, queue_share = self._largest_queue(cohort)
        below: QuotaNode | None = None
        below_share = NO_SHARE
        for child in cohort.children:
            if not child.is_cohort or child in self._pruned:
                continue
            share = self._share(child)
            if share.is_zero and child not in self._path:
                self._pruned.add(child)
            elif below is None or below_share <= share:
                below, below_share = child, share
        if below is None and queue is None:
            self._pruned.add(cohort)
            return None
        if below is not None and (queue is None or queue_share <= below_share):
            return self._next(below)
        return queue

    def _largest_queue(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        largest: QuotaNode | None = None
        largest_share = NO_SHARE
        for child in cohort.children:
            if child.is_cohort or child in self._pruned:
                continue
            share = self._share(child)
            own = child is self._context.queue.node
            if (share.is_zero and not own) or not self.waiting.get(child.name):
                self._pruned.add(child)
                continue
            order = 1 if largest is None else share.compare(largest_share)
            if order > 0 or (order == 0 and largest and self._goes_before(child, largest)):
                largest, largest_share = child, share
        return largest, largest_share

    def _goes_before(self, one: QuotaNode, other: QuotaNode) -> bool:
        name, now_ns = self._context.queue.name, self._context.now_ns
        first, second = self.waiting[one.name][0], self.waiting[other.name][0]
        return order_key(first, name, now_ns) < order_key(second, name, now_ns)


class _FairSearch:
    def __init__(self, context: PreemptionContext, settings: EngineSettings) -> None:
        self._context = context
        self._strategy = settings.fair_strategies[0]
        self._reclaims = settings.fair_reclaim_within_nominal
        self._retry: list[WorkloadInfo] = []
        self.removed: list[Removed] = []

    def first(self, candidates: Iterable[WorkloadInfo]) -> bool:
        """Apply the first strategy; the second gets what it spares. True if it fits."""
        context = self._context
        node = context.queue.node
        within_nominal = self._reclaims and node.is_within_nominal(context.frs)
        visits = _Visits(context, candidates)
        for visited in visits:
            waiting = visits.waiting[visited.name]
            if visited is node:
                if self._take(waiting.popleft(), PreemptionReason.IN_CLUSTER_QUEUE):
                    return True
                continue
            if within_nominal:
                if self._take(waiting.popleft(), PreemptionReason.IN_COHORT_RECLAMATION):
                    return True
                continue
            mine, theirs = self._below_meeting(visited)
            new_share, old_share = self._share(mine), self._share(theirs)
            while waiting:
                info = waiting.popleft()
                if self._allows(new_share, old_share, visited, theirs, info):
                    if self._take(info, PreemptionReason.IN_COHORT_FAIR_SHARING):
                        return True
                    break  # shares changed: another queue may come first now
                self._retry.append(info)
        return False

    def second(self) -> bool:
        """Apply LessThanInitialShare; it does not depend on the candidate, so one of a queue is
        enough. True if it fits."""
        visits = _Visits(self._context, self._retry)
        for visited in visits:
            mine, theirs = self._below_meeting(visited)
            if self._share(mine) < self._share(theirs):
                info = visits.waiting[visited.name].popleft()
                if self._take(info, PreemptionReason.IN_COHORT_FAIR_SHARING):
                    return True
            visits.drop(visited)
        return False

    def _allows(
        self,
        new_share: Share,
        old_share: Share,
        visited: QuotaNode,
        theirs: QuotaNode,
        info: WorkloadInfo,
    ) -> bool:
        if self._strategy is FairPreemptionStrategy.LESS_THAN_INITIAL_SHARE:
            return new_share < old_share
        visited.remove_usage(info.usage)
        final_share = self._share(theirs)
        visited.add_usage(info.usage)
        return new_share <= final_share

    def _take(self, info: WorkloadInfo, reason: PreemptionReason) -> bool:
        """Remove the workload; True if the preemptor fits now."""
        context = self._context
        node = context.cache.queues[info.cluster_queue].node
        node.remove_usage(info.usage)
        self.removed.append(Removed(info, node, reason))
        context.queue.node.remove_usage(context.usage)
        fits = context.fits(may_borrow=True)
        context.queue.node.add_usage(context.usage)
        return fits

    def _share(self, node: QuotaNode) -> Share:
        return dominant_share(node, self._context.cache.numbers)

    def _below_meeting(self, visited: QuotaNode) -> tuple[QuotaNode, QuotaNode]:
        """The two nodes just below the lowest cohort over both queues."""
        mine = self._context.queue.node.path
        theirs = visited.path
        up = 1
        while mine[-up] is theirs[-up]:
            up += 1
        return mine[-up], theirs[-up]
