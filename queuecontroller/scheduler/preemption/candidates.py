"""Candidates for preemption so that a workload finds room, in order: one search's view of the
workloads that hold quota.

withinClusterQueue selects candidates of the workload's own queue, reclaimWithinCohort those of
other queues that borrow, the latter only while the workload stays within its queue's own quota. The
order is that of preemption. Candidates are not collected or sorted: the search reads those that
hold a part of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Final

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import PreemptionPolicy, WorkloadKey
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.preemption.search import (
    PreemptionContext,
    may_preempt_within_queue,
    may_reclaim,
    uses_any,
)
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.holders import Rank, Ranked
from queuecontroller.scheduler.quota.tree import QuotaNode

Turn = tuple[bool, bool, int, Rank]
"""A candidate's place in the order of preemption, the smallest first: 0. False for one that is
evicted already: it leaves in any case; 1. False for one of another ClusterQueue: borrowed quota is
reclaimed first; 2. minus the usage of its LocalQueue, where admission fair sharing counts it, else
0; 3. its rank among all that hold quota: lowest priority, then latest reservation. A plain tuple,
since a search makes and compares thousands of them."""
_FIRST: Final = -(1 << 80)
AT_ONCE: Final[Turn] = (False, False, _FIRST, (False, _FIRST, _FIRST, "", ""))
"""Turn before all others: no workload has to leave."""
_ANY_PRIORITY: Final = 1 << 40
"""Above every priority, which has 32 bits."""


class Candidates:
    __slots__ = (
        "_borrowers",
        "_context",
        "_cuts",
        "_lenders",
        "_own",
        "_protected",
        "below",
        "by_rank",
        "gone",
        "queues",
    )

    def __init__(
        self,
        context: PreemptionContext,
        removed: Sequence[WorkloadInfo],
        gone: Collection[WorkloadKey],
    ) -> None:
        """`removed` are victims for the quota in any case; they and others are `gone` already."""
        self._context = context
        self.gone = gone
        self.by_rank = context.cache.history is None
        """True if candidates of one kind leave in the order of their ranks."""
        protection = context.cache.protection
        self._protected = {
            True: context.protects(protection.within_queue_ns),
            False: context.protects(protection.reclaim_ns),
        }
        """Protection test for candidates of the own queue, and of others."""
        self._own: ClusterQueueState = context.queue
        own = context.queue.node
        preemption = context.queue.spec.preemption
        within, reclaim = preemption.within_cluster_queue, preemption.reclaim_within_cohort
        self._lenders: dict[str, QuotaNode] = {}
        self._cuts: dict[str, Turn] = {}
        self._borrowers: dict[str, _Borrower] = {}
        for info in removed:
            context.remove(info)
        try:
            if reclaim is not PreemptionPolicy.NEVER and not context.borrows():
                for node in own.root.borrowing(context.frs):
                    if node is not own:
                        self._lenders[node.name] = node
                        if any(node.nominal.get(fr, 0) for fr in context.frs):
                            self._borrowers[node.name] = _Borrower(self, node)
        finally:
            for info in removed:
                context.put_back(info)
        self.below = context.info.priority + (within is not PreemptionPolicy.LOWER_PRIORITY)
        """Exclusive upper bound of the candidates' priority."""
        if self._lenders and reclaim is PreemptionPolicy.ANY:
            self.below = _ANY_PRIORITY
        nodes = list(self._lenders.values())
        if within is not PreemptionPolicy.NEVER:
            nodes.append(own)
        self.queues = frozenset(node.name for node in nodes if self._has_some(node))
        """ClusterQueues that may have candidates."""

    def _has_some(self, node: QuotaNode) -> bool:
        lowest = self._context.cache.holders.lowest(node, self._context.frs)
        return lowest is not None and lowest < self.below

    @property
    def frs(self) -> frozenset[Fr]:
        return self._context.frs

    def ranked_of(self, key: Hashable) -> Ranked | None:
        """Rank of a workload among all that hold quota; None: it holds none, or is no workload."""
        return self._context.cache.holders.at(key)

    def turn(self, ranked: Ranked) -> Turn | None:
        """The candidate's turn; None: it is not a candidate, or is gone already."""
        rank, info = ranked
        if info.key in self.gone or info.cluster_queue not in self.queues:
            return None
        mine = info.cluster_queue == self._own.name
        may = may_preempt_within_queue if mine else may_reclaim
        if not may(self._context, info) or not uses_any(info, self._context.frs):
            return None
        protected = self._protected[mine]
        if protected is not None and protected(info):
            return None
        used = 0 if self.by_rank else -self._context.cache.has_used(info)
        return (rank[0], mine, used, rank)

    def no_sooner_than(self, rank: Rank) -> Turn:
        """A lower bound of the turns of all candidates with this rank or a later one."""
        return (rank[0], not self._lenders, 0, rank)

    def target(self, info: WorkloadInfo) -> Target:
        if info.cluster_queue == self._own.name:
            return Target(info, PreemptionReason.IN_CLUSTER_QUEUE)
        return Target(info, PreemptionReason.IN_COHORT_RECLAMATION)

    # -- others go only as long as their queue borrows --------------------------------------------

    def look_until(self, turn: Turn, helps: Callable[[WorkloadKey], bool]) -> None:
        """Find the queues that have returned what they borrowed before this turn; `helps` is True
        for candidates that make room by leaving, the only ones that count."""
        for name, borrower in self._borrowers.items():
            if name not in self._cuts and (cut := borrower.cut(turn, helps)) is not None:
                self._cuts[name] = cut

    def still_goes(self, info: WorkloadInfo, turn: Turn) -> bool:
        cut = self._cuts.get(info.cluster_queue)
        return cut is None or turn < cut

    @property
    def ended(self) -> int:
        """Number of queues known to borrow no more."""
        return len(self._cuts)

    def ranked(self, node: QuotaNode) -> Iterator[Ranked]:
        """All workloads in the queue, in the order they would leave."""
        cache, frs = self._context.cache, self._context.frs
        if self.by_rank:
            return cache.holders.one_by_one(node, frs)
        return iter(
            sorted(
                cache.holders.of(node, frs), key=lambda one: (one[0][0], -cache.has_used(one[1]))
            )
        )


class _Borrower:
    """A queue that borrows, with its evaluated candidates in the order they would leave."""

    __slots__ = ("_candidates", "_next", "_over", "_ranked")

    def __init__(self, candidates: Candidates, node: QuotaNode) -> None:
        self._candidates = candidates
        self._ranked = candidates.ranked(node)
        self._next: tuple[Turn, WorkloadInfo] | None = None
        """The candidate that was read last and is not due yet."""
        self._over = {fr: node.used(fr) - node.cell(fr).quota for fr in candidates.frs}
        """Usage beyond its own quota, without the candidates that were evaluated."""

    def cut(self, until: Turn, helps: Callable[[WorkloadKey], bool]) -> Turn | None:
        """The turn at which it has returned all that it borrowed; None: later than `until`."""
        over = self._over
        while (coming := self._next or self._look_on()) is not None:
            self._next = coming
            turn, info = coming
            if turn > until:
                return None
            if helps(info.key):
                if all(amount <= 0 for amount in over.values()):
                    return turn
                for fr, amount in info.usage.items():
                    if fr in over:
                        over[fr] -= amount
            self._next = None
        return None

    def _look_on(self) -> tuple[Turn, WorkloadInfo] | None:
        for one in self._ranked:
            turn = self._candidates.turn(one)
            if turn is not None:
                return turn, one[1]
        return None
