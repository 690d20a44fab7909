"""The engine without any of its shortcuts, to hold it against: every workload is looked at in every
cycle, nothing is remembered between two, and preemption tries its candidates one by one."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

from queuecontroller.scheduler import cycle as cycle_module
from queuecontroller.scheduler import scheduler as scheduler_module
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import PreemptionPolicy, QueueingStrategy, WorkloadKey
from queuecontroller.scheduler.model.reasons import PreemptionReason
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import Target, WorkloadInfo
from queuecontroller.scheduler.pending.fifo import Why, order_of
from queuecontroller.scheduler.pending.trees import LookAgain
from queuecontroller.scheduler.preemption.search import (
    PreemptionContext,
    may_preempt_within_queue,
    may_reclaim,
    uses_any,
)
from queuecontroller.scheduler.quota.holders import rank_of
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.scheduler.scheduler import Scheduler


class PlainQueue:
    """A list of who is pending, looked through from its begin for each head."""

    history = None
    by_shape = True
    """True if a workload that cannot start sets aside the others of its shape."""

    def __init__(
        self, name: str, strategy: QueueingStrategy, unreported: list[WorkloadKey] | None = None
    ) -> None:
        self.name = name
        self.strategy = strategy
        self._present: dict[WorkloadKey, WorkloadInfo] = {}
        self._resting: dict[WorkloadKey, int] = {}
        self._inadmissible_lines: set[WorkloadKey] = set()
        self._aside_shapes: set[object] = set()
        self._sticky: WorkloadKey | None = None
        self._freed = -1

    def __len__(self) -> int:
        return len(self._present)

    def everyone(self) -> list[WorkloadInfo]:
        return sorted(self._present.values(), key=order_of)

    def push(self, info: WorkloadInfo, not_before_ns: int = 0, now_ns: int = 0) -> None:
        self.remove(info.key)
        self._present[info.key] = info
        if not_before_ns > now_ns:
            self._resting[info.key] = not_before_ns
        else:
            self._stand(info)

    def remove(self, key: WorkloadKey) -> WorkloadInfo | None:
        self._resting.pop(key, None)
        self._inadmissible_lines.discard(key)
        if self._sticky == key:
            self._sticky = None
        return self._present.pop(key, None)

    def _stand(self, info: WorkloadInfo) -> None:
        """The oldest of a shape may have candidates to preempt that the younger had not."""
        for other in self.everyone():
            if other.shape == info.shape and other.key not in self._inadmissible_lines | {
                *self._resting
            }:
                if other is info:
                    self._aside_shapes.discard(info.shape)
                return

    def head(self, freed: int, now_ns: int) -> WorkloadInfo | None:
        for key, until_ns in list(self._resting.items()):
            if until_ns <= now_ns:
                del self._resting[key]
                self._stand(self._present[key])
        if freed != self._freed:
            self._freed = freed
            self.requeue_inadmissible()
        for info in sorted(self.everyone(), key=lambda info: info.key != self._sticky):
            away = info.key in self._inadmissible_lines or info.key in self._resting
            if not away and info.shape not in self._aside_shapes:
                return info
        return None

    def wakes_at_ns(self) -> int | None:
        return min(self._resting.values(), default=None)

    def mark_shape_inadmissible(self, info: WorkloadInfo, why: Why) -> None:
        if self.by_shape:
            self._aside_shapes.add(info.shape)
        else:
            self._inadmissible_lines.add(info.key)

    def mark_inadmissible(self, info: WorkloadInfo) -> None:
        self._inadmissible_lines.add(info.key)

    def keep_first(self, info: WorkloadInfo) -> None:
        self._sticky = info.key

    def requeue_inadmissible(self) -> None:
        self._aside_shapes.clear()
        self._inadmissible_lines.clear()


class PlainQueueOfSingles(PlainQueue):
    by_shape = False


class PlainScheduler(Scheduler):
    def cycle(self, now_ns: int) -> CycleResult:
        for tree in self._round:
            tree.look_again = max(tree.look_again, LookAgain.AT_LEISURE)
            for queue in tree.members:
                for info in queue.everyone():
                    info.memo = None
        return super().cycle(now_ns)


def as_plain(queue: type[PlainQueue] = PlainQueue) -> mock._patch[object]:
    """While it is in force, queues that are made are plain ones."""
    return mock.patch.object(scheduler_module, "PendingQueue", queue)


def plain_preemption() -> mock._patch[object]:
    return mock.patch.object(cycle_module, "classic_targets", plain_targets)


# -- preemption -----------------------------------------------------------------------------------


def plain_targets(context: PreemptionContext, settings: EngineSettings) -> list[Target]:
    advantages = _advantages(context)
    for may_borrow in _attempts(context, advantages):
        removed: list[tuple[QuotaNode, Target]] = []
        fits = False
        for evicted in (True, False):
            for kind in ("advantage", "other", "own"):
                for node, target in _candidates(context, advantages, kind, evicted, may_borrow):
                    node.remove_usage(target.info.usage)
                    removed.append((node, target))
                    fits = context.fits(may_borrow)
                    if fits:
                        break
                if fits:
                    break
            if fits:
                break
        for one in removed[-2::-1] if fits else ():
            one[0].add_usage(one[1].info.usage)
            if context.fits(may_borrow):
                removed.remove(one)
            else:
                one[0].remove_usage(one[1].info.usage)
        for node, target in removed:
            node.add_usage(target.info.usage)
        if fits:
            return [target for _, target in removed]
    return []


def _attempts(context: PreemptionContext, advantages: dict[QuotaNode, bool]) -> tuple[bool, ...]:
    policy = context.queue.spec.preemption.borrow_within_cohort.policy
    forbidden = policy is PreemptionPolicy.NEVER
    node = context.queue.node
    if forbidden and any(node.usage.get(fr, 0) >= node.nominal.get(fr, 0) for fr in context.frs):
        return (True,)
    advantage, other = (
        any(
            True
            for evicted in (True, False)
            for _ in _candidates(context, advantages, kind, evicted, may_borrow=False)
        )
        for kind in ("advantage", "other")
    )
    if not advantage and not other:
        return (True,)
    return (False, True) if forbidden and not advantage else (True, False)


def _candidates(
    context: PreemptionContext,
    advantages: dict[QuotaNode, bool],
    kind: str,
    evicted: bool,
    may_borrow: bool,
) -> Iterator[tuple[QuotaNode, Target]]:
    """Each is judged as things stand when its turn comes."""
    own = context.queue.node
    apart = context.cache.set_apart
    everyone = [
        (context.cache.queues[node.name].node, info)
        for node in own.root.cluster_queues()
        for info in context.cache.queues[node.name].workloads.values()
        if uses_any(info, context.frs) and info.evicted is evicted and info.key not in apart
    ]
    for node, info in sorted(everyone, key=lambda pair: rank_of(pair[1])):
        if node is own:
            if kind == "own" and may_preempt_within_queue(context, info):
                yield node, Target(info, PreemptionReason.IN_CLUSTER_QUEUE)
            continue
        if kind == "own" or not advantages or not may_reclaim(context, info):
            continue
        meeting = next(above for above in node.path if above in advantages)
        below = node.path[: node.path.index(meeting)]
        if any(one.is_within_nominal(context.frs) for one in below):
            continue
        if advantages[meeting]:
            if kind == "advantage":
                yield node, Target(info, PreemptionReason.IN_COHORT_RECLAMATION)
            continue
        if kind != "other":
            continue
        borrow = context.queue.spec.preemption.borrow_within_cohort
        threshold = borrow.max_priority_threshold
        while_borrowing = (
            borrow.policy is not PreemptionPolicy.NEVER
            and info.priority < context.info.priority
            and (threshold is None or info.priority <= threshold)
        )
        if while_borrowing:
            yield node, Target(info, PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING)
        elif not may_borrow:
            yield node, Target(info, PreemptionReason.IN_COHORT_RECLAMATION)


def _advantages(context: PreemptionContext) -> dict[QuotaNode, bool]:
    """Advantages as they are before any victim is taken out."""
    node = context.queue.node
    reclaim = context.queue.spec.preemption.reclaim_within_cohort
    if node.parent is None or reclaim is PreemptionPolicy.NEVER:
        return {}
    found: dict[QuotaNode, bool] = {}
    rest = dict(context.usage)
    fits = False
    for below, cohort in zip(node.path, node.path[1:], strict=False):
        if not fits:
            fits = not any(below.borrowing_with(fr, amount) for fr, amount in rest.items())
            rest = {fr: max(0, amount - below.local_available(fr)) for fr, amount in rest.items()}
        found[cohort] = fits
    return found
