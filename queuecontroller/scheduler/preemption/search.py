"""Search for victims: admitted workloads that are preempted so that a pending one fits.

Victims are removed from the cohort tree one after the other until the workload fits; then each is
put back if possible, in reverse order, so that the set is minimal. The tree is left as it was
found: every removal is undone before returning. `candidates` finds and orders the candidates
without fair sharing, `fair` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from queuecontroller.scheduler.model.assignment import Assignment, PreemptionMode
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import PreemptionPolicy
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.tree import QuotaNode


@dataclass(frozen=True, slots=True)
class PreemptionContext:
    """One search: victims so that `info` can use `usage` more in `queue`."""

    cache: Cache
    queue: ClusterQueueState
    info: WorkloadInfo
    frs: frozenset[Fr]
    """Flavor resources that lack quota; only workloads that use any of them are candidates."""
    usage: Mapping[Fr, int]
    now_ns: int

    def remove(self, info: WorkloadInfo) -> None:
        self.cache.queues[info.cluster_queue].node.remove_usage(info.usage)

    def put_back(self, info: WorkloadInfo) -> None:
        self.cache.queues[info.cluster_queue].node.add_usage(info.usage)

    def protects(self, for_ns: int) -> Callable[[WorkloadInfo], bool] | None:
        """A test for protected workloads, `for_ns` from their admission; None: there are none."""
        classes = self.cache.protection.classes
        if not for_ns and not classes:
            return None
        until, root = self.cache.protected_until, self.queue.node.root

        def is_protected(info: WorkloadInfo) -> bool:
            if info.evicted:
                return False
            if info.workload.priority_class in classes:
                return True
            if info.admitted_ns is None or (end_ns := info.admitted_ns + for_ns) <= self.now_ns:
                return False
            until[root] = min(end_ns, until.get(root, end_ns))
            return True

        return is_protected

    def borrows(self) -> bool:
        """True if the usage exceeds what the queue has left of its own quota."""
        node = self.queue.node
        return any(node.borrowing_with(fr, amount) for fr, amount in self.usage.items())

    def fits(self, may_borrow: bool) -> bool:
        node = self.queue.node
        for fr, amount in self.usage.items():
            if not may_borrow and node.borrowing_with(fr, amount):
                return False
            if amount > max(0, node.available(fr)):
                return False
        return True


def uses_any(info: WorkloadInfo, frs: frozenset[Fr]) -> bool:
    return not frs.isdisjoint(info.usage)


OrderKey = tuple[bool, bool, int, int, str]


def order_key(info: WorkloadInfo, queue: str, now_ns: int) -> OrderKey:
    """Order of victims: the already evicted, then other queues' workloads, the lowest priority, the
    most recently admitted; equal ones by UID."""
    reserved = now_ns if info.reserved_ns is None else info.reserved_ns
    return (not info.evicted, info.cluster_queue == queue, info.priority, -reserved, info.uid)


def ordered(
    infos: Iterable[WorkloadInfo], queue: str, now_ns: int, cache: Cache
) -> list[WorkloadInfo]:
    """Sort candidates; in a usage-based ClusterQueue those of the LocalQueue that used most come
    first of their kind."""

    def key(info: WorkloadInfo) -> tuple[bool, bool, int, OrderKey, str]:
        order = order_key(info, queue, now_ns)
        # The key comes last so that two runs agree where Kueue's order is arbitrary.
        return (*order[:2], -cache.has_used(info), order, info.key)

    if cache.history is not None:
        return sorted(infos, key=key)
    return sorted(infos, key=lambda info: (order_key(info, queue, now_ns), info.key))


def may_preempt_within_queue(context: PreemptionContext, other: WorkloadInfo) -> bool:
    policy = context.queue.spec.preemption.within_cluster_queue
    mine = context.info
    if policy is PreemptionPolicy.NEVER or other.priority > mine.priority:
        return False
    if other.priority < mine.priority or policy is PreemptionPolicy.ANY:
        return True
    newer_too = policy is PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY
    return newer_too and mine.order_ns < other.order_ns


def may_reclaim(context: PreemptionContext, other: WorkloadInfo) -> bool:
    policy = context.queue.spec.preemption.reclaim_within_cohort
    if policy is PreemptionPolicy.NEVER:
        return False
    return policy is PreemptionPolicy.ANY or other.priority < context.info.priority


class Removed:
    """A workload removed from the tree to check that the preemptor fits without it."""

    __slots__ = ("info", "node", "reason")

    def __init__(self, info: WorkloadInfo, node: QuotaNode, reason: PreemptionReason) -> None:
        self.info = info
        self.node = node
        self.reason = reason


def fill_back(
    context: PreemptionContext, removed: Sequence[Removed], may_borrow: bool
) -> list[Removed]:
    """Put back victims that need not leave, from the end, and return the others. The last one
    always has to leave: without it nothing fitted."""
    kept = [removed[-1]]
    for one in removed[-2::-1]:
        one.node.add_usage(one.info.usage)
        if not context.fits(may_borrow):
            one.node.remove_usage(one.info.usage)
            kept.append(one)
    kept.reverse()
    return kept


Algorithm = Callable[[PreemptionContext, EngineSettings], Sequence[Target]]


class Preemptor:
    """Finds victims; also the flavor search's oracle."""

    def __init__(
        self,
        cache: Cache,
        settings: EngineSettings,
        classic: Algorithm,
        fair: Algorithm,
        now_ns: int = 0,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._algorithm = fair if settings.fair_sharing else classic
        self.now_ns = now_ns
        self._last: tuple[WorkloadInfo, frozenset[Fr], Mapping[Fr, int]] | None = None
        self._last_targets: Sequence[Target] = ()

    def forget(self) -> None:
        """Drop cached results; called when usage or candidates changed since the last search."""
        self._last = None

    def _search(self, context: PreemptionContext) -> Sequence[Target]:
        # With one resource short, the question for targets is the one the oracle just answered.
        asked = (context.info, context.frs, context.usage)
        if self._last is None or self._last != asked:
            self._last_targets = self._algorithm(context, self._settings)
            self._last = asked
        return self._last_targets

    def targets(
        self, queue: ClusterQueueState, info: WorkloadInfo, assignment: Assignment
    ) -> list[Target]:
        frs = assignment.frs_needing_preemption()
        context = PreemptionContext(self._cache, queue, info, frs, assignment.usage, self.now_ns)
        return list(self._search(context))

    def simulate(
        self, queue: ClusterQueueState, info: WorkloadInfo, fr: Fr, amount: int
    ) -> tuple[PreemptionMode, int]:
        """Result of preempting for one resource alone, and the borrowing height then."""
        context = PreemptionContext(
            self._cache, queue, info, frozenset((fr,)), {fr: amount}, self.now_ns
        )
        targets = self._search(context)
        if not targets:
            return PreemptionMode.NO_CANDIDATES, queue.node.borrow_height(fr, amount)[0]
        for target in targets:
            context.remove(target.info)
        borrow, _ = queue.node.borrow_height(fr, amount)
        for target in targets:
            context.put_back(target.info)
        if any(target.info.cluster_queue == queue.name for target in targets):
            return PreemptionMode.PREEMPT, borrow
        return PreemptionMode.RECLAIM, borrow
