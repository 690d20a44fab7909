"""Preemption without fair sharing: own lower priorities, and quota lent to others.

Candidates of other queues come in two kinds. Where the wanted usage fits the quota of a subtree
the queue belongs to, whoever borrows from that subtree has to give way (hierarchical reclaim).
Elsewhere only lower priorities do, and only under borrowWithinCohort while borrowing oneself.
Candidates are looked at one by one, as the search goes on: most searches end after a few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from .holders import Ranked, rank_of
from .model import PreemptionPolicy, PreemptionReason
from .preemption import (
    PreemptionContext,
    fill_back,
    may_preempt_within_queue,
    may_reclaim,
    uses_any,
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
    if forbidden and any(node.usage.get(fr, 0) >= node.nominal.get(fr, 0) for fr in context.frs):
        return (True,)
    advantaged = candidates.has(advantaged=True)
    if not advantaged and not candidates.has(advantaged=False):
        return (True,)
    if forbidden and not advantaged:
        return (False, True)
    return (True, False)


class _Candidates:
    """Who may go, in order: the evicted of each kind first, then the others of each."""

    __slots__ = ("_context", "_levels", "_own", "_ranked", "_split")

    def __init__(self, context: PreemptionContext) -> None:
        self._context = context
        self._levels = _levels(context)
        node = context.queue.node
        self._ranked: Sequence[Ranked] = ()
        if self._levels:
            self._ranked = context.cache.holders.of(node.root, context.frs)
        self._split = bisect_left(self._ranked, (True,), key=lambda entry: entry[0][:1])
        self._own = _own_candidates(context)

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
        if not any(level is advantaged for level in self._levels.values()):
            return
        context, levels = self._context, self._levels
        ranked, split = self._ranked, self._split
        meetings, set_apart = context.queue.meetings, context.cache.set_apart
        for i in range(split) if evicted else range(split, len(ranked)):
            info = ranked[i][1]
            name = info.cluster_queue
            if name not in meetings:
                meetings[name] = self._meeting(name)
            met = meetings[name]
            if met is None or levels[met[1]] is not advantaged or info.key in set_apart:
                continue
            if not _borrows(met[0], met[1], context.frs):
                continue
            variant = _variant(context, info, advantaged)
            if variant is not None:
                yield info, variant

    def _meeting(self, name: str) -> tuple[QuotaNode, QuotaNode] | None:
        node = self._context.cache.queues[name].node
        if node is self._context.queue.node:
            return None
        return node, next(above for above in node.path if above in self._levels)


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
    found = [
        info
        for info in context.queue.workloads.values()
        if may_preempt_within_queue(context, info)
        and uses_any(info, context.frs)
        and info.key not in context.cache.set_apart
    ]
    found.sort(key=rank_of)
    return found


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
