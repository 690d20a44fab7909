"""Preemption without fair sharing: own lower priorities, and quota lent to others.

Candidates of other queues come in two kinds. Where the wanted usage fits the quota of a subtree
the queue belongs to, whoever borrows from that subtree has to give way (hierarchical reclaim).
Elsewhere only lower priorities do, and only under borrowWithinCohort while borrowing oneself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from .model import PreemptionPolicy, PreemptionReason
from .preemption import (
    PreemptionContext,
    fill_back,
    may_preempt_within_queue,
    may_reclaim,
    ordered,
    uses_any,
)
from .quota_tree import Fr, QuotaNode
from .settings import EngineSettings
from .workload_info import Target, WorkloadInfo


class Variant(Enum):
    """Why a candidate may go, with the reason it is told."""

    WITHIN_QUEUE = PreemptionReason.IN_CLUSTER_QUEUE
    HIERARCHICAL_RECLAIM = PreemptionReason.IN_COHORT_RECLAMATION
    RECLAIM_WITHOUT_BORROWING = "only while not borrowing"
    RECLAIM_WHILE_BORROWING = PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING

    @property
    def reason(self) -> PreemptionReason:
        if self is Variant.RECLAIM_WITHOUT_BORROWING:
            return PreemptionReason.IN_COHORT_RECLAMATION
        return PreemptionReason(self.value)


class Candidate:
    __slots__ = ("info", "meeting", "variant")

    def __init__(self, info: WorkloadInfo, meeting: QuotaNode | None, variant: Variant) -> None:
        self.info = info
        self.meeting = meeting
        """The lowest cohort over both queues; None for the own queue."""
        self.variant = variant


def classic_targets(context: PreemptionContext, settings: EngineSettings) -> list[Target]:
    own = _own_candidates(context)
    advantaged, others = _cohort_candidates(context)
    candidates = _in_order(context, advantaged, others, own)
    if not candidates:
        return []
    for may_borrow in _attempts(context, bool(advantaged), bool(others)):
        targets: list[Target] = []
        for candidate in candidates:
            if not _is_still_valid(context, candidate, may_borrow):
                continue
            context.remove(candidate.info)
            targets.append(Target(candidate.info, candidate.variant.reason))
            if context.fits(may_borrow):
                targets = fill_back(context, targets, may_borrow)
                _restore(context, targets)
                return targets
        _restore(context, targets)
    return []


def _restore(context: PreemptionContext, targets: list[Target]) -> None:
    for target in targets:
        context.put_back(target.info)


def _attempts(context: PreemptionContext, advantaged: bool, others: bool) -> tuple[bool, ...]:
    """Whether the workload may borrow, by attempt."""
    forbidden = not context.queue.spec.preemption.may_borrow_while_preempting
    node = context.queue.node
    if not advantaged and not others:
        return (True,)
    under_nominal = all(node.usage.get(fr, 0) < node.nominal.get(fr, 0) for fr in context.frs)
    if forbidden and not under_nominal:
        return (True,)
    if forbidden and not advantaged:
        return (False, True)
    return (True, False)


def _in_order(
    context: PreemptionContext,
    advantaged: list[Candidate],
    others: list[Candidate],
    own: list[Candidate],
) -> list[Candidate]:
    """The evicted of each kind first, and within a kind by the common order."""
    result: list[Candidate] = []
    kinds = []
    for kind in (advantaged, others, own):
        by_key = {one.info.key: one for one in kind}
        infos = ordered((one.info for one in kind), context.queue.name, context.now_ns)
        kinds.append([by_key[info.key] for info in infos])
    for evicted in (True, False):
        for kind in kinds:
            result += [one for one in kind if one.info.evicted is evicted]
    return result


def _is_still_valid(context: PreemptionContext, candidate: Candidate, may_borrow: bool) -> bool:
    """Whether the candidate's queue still borrows, as earlier targets may have ended that."""
    if candidate.meeting is None:
        return True
    if may_borrow and candidate.variant is Variant.RECLAIM_WITHOUT_BORROWING:
        return False
    for node in context.cache.queues[candidate.info.cluster_queue].node.path:
        if node is candidate.meeting:
            return True
        if node.is_within_nominal(context.frs):
            return False
    return True


def _own_candidates(context: PreemptionContext) -> list[Candidate]:
    if context.queue.spec.preemption.within_cluster_queue is PreemptionPolicy.NEVER:
        return []
    return [
        Candidate(info, None, Variant.WITHIN_QUEUE)
        for info in context.queue.workloads.values()
        if uses_any(info, context.frs) and may_preempt_within_queue(context, info)
    ]


def _cohort_candidates(
    context: PreemptionContext,
) -> tuple[list[Candidate], list[Candidate]]:
    """Those the workload has a hierarchical advantage over, and the rest."""
    node = context.queue.node
    reclaim = context.queue.spec.preemption.reclaim_within_cohort
    if node.parent is None or reclaim is PreemptionPolicy.NEVER:
        return [], []
    advantaged: list[Candidate] = []
    others: list[Candidate] = []
    has_advantage, rest = _fits_quota(node, context.usage)
    below = node
    for cohort in node.path[1:]:
        into = advantaged if has_advantage else others
        for info in _borrowers(context, cohort, below):
            variant = _variant(context, info, has_advantage)
            if variant is not None:
                into.append(Candidate(info, cohort, variant))
        fits, rest = _fits_quota(cohort, rest)
        has_advantage = has_advantage or fits
        below = cohort
    return advantaged, others


def _fits_quota(node: QuotaNode, usage: Mapping[Fr, int]) -> tuple[bool, dict[Fr, int]]:
    """Whether the usage is within the subtree's quota, and what is left to find higher up."""
    fits = not any(node.borrowing_with(fr, amount) for fr, amount in usage.items())
    rest = {fr: max(0, amount - node.local_available(fr)) for fr, amount in usage.items()}
    return fits, rest


def _borrowers(
    context: PreemptionContext, cohort: QuotaNode, skip: QuotaNode
) -> Iterator[WorkloadInfo]:
    """Workloads of queues below `cohort` that borrow, without those below `skip`."""
    for child in cohort.children:
        if child is skip or child.is_within_nominal(context.frs):
            continue
        if child.is_cohort:
            yield from _borrowers(context, child, skip)
        else:
            yield from context.cache.queues[child.name].workloads.values()


def _variant(context: PreemptionContext, info: WorkloadInfo, has_advantage: bool) -> Variant | None:
    if not uses_any(info, context.frs) or not may_reclaim(context, info):
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
