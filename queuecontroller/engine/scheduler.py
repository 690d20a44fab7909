"""The scheduler: objects and workloads come in as events, decisions come out of cycles.

No clock and no I/O: every call that needs the time is given it. The shell submits workloads, runs
`cycle` whenever something changed (or `next_wake_ns` has come), carries the decisions out and says
when a workload finished or a preempted one has stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .assignment import PendingReason
from .cache import Cache
from .cycle import Cycle
from .decisions import CycleResult
from .entries import Entry, Status
from .limit_range import LimitRange
from .model import CheckState, LocalQueue, QueueingStrategy, StopPolicy, Workload, WorkloadKey
from .pending import PendingQueue
from .quota_tree import QuotaNode
from .settings import EngineSettings
from .workload_info import FINISHED, WorkloadInfo

_UNWELCOME: Final = (
    PendingReason.MISCONFIGURED,
    "Workload namespace doesn't match ClusterQueue selector",
)


class _Gate:
    """Holds back the news that quota was freed in one tree."""

    __slots__ = ("due_ns", "seen")

    def __init__(self, seen: int, due_ns: int | None) -> None:
        self.seen = seen
        self.due_ns = due_ns


class Scheduler:
    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.cache = Cache()
        self.pending: dict[str, PendingQueue] = {}
        self._local_queues: dict[str, LocalQueue] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._limit_ranges: dict[str, Sequence[LimitRange]] = {}
        self._homeless: dict[WorkloadKey, tuple[Workload, str]] = {}
        """Workloads no queue takes, and why."""
        self._holding: dict[WorkloadKey, WorkloadInfo] = {}
        self._queue_of: dict[WorkloadKey, str] = {}
        """The ClusterQueue a pending workload stands in."""
        self._gates: dict[QuotaNode, _Gate] = {}
        self._trees: list[list[str]] = []
        """ClusterQueues by cohort tree; `_next_tree` is where the next cycle begins."""
        self._next_tree = 0
        self._inactive: dict[str, str] = {}
        """ClusterQueues nothing is admitted through, and why."""

    # -- objects ----------------------------------------------------------------------------------

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        self._namespaces[name] = labels
        for queue in self.pending.values():
            queue.reconsider()

    def put_limit_ranges(self, namespace: str, limits: Sequence[LimitRange]) -> None:
        self._limit_ranges[namespace] = tuple(limits)

    def put_local_queue(self, queue: LocalQueue) -> None:
        self._local_queues[queue.key] = queue

    def drop_local_queue(self, key: str) -> None:
        """Who waits in it has to be submitted again, to be told so."""
        self._local_queues.pop(key, None)

    def settle(self) -> None:
        """Takes changed objects into effect: rebuilds the trees and finds everyone a queue."""
        if self.cache.settle():
            self._gates = {}
        self._inactive = {}
        for name, state in self.cache.queues.items():
            why = self.cache.why_inactive(name)
            if why is not None:
                self._inactive[name] = why
            strategy = state.spec.queueing_strategy
            queue = self.pending.get(name)
            if queue is None:
                self.pending[name] = PendingQueue(name, strategy)
            else:
                queue.strategy = strategy
                queue.reconsider()
        for name in [name for name in self.pending if name not in self.cache.queues]:
            for info in self.pending.pop(name).everyone():
                self._queue_of.pop(info.key, None)
                self._homeless[info.key] = (info.workload, f"ClusterQueue {name} doesn't exist")
        by_root: dict[QuotaNode, list[str]] = {}
        for name, state in self.cache.queues.items():
            by_root.setdefault(state.node.root, []).append(name)
        self._trees, self._next_tree = list(by_root.values()), 0
        for workload, _ in list(self._homeless.values()):
            self.submit(workload)

    # -- workloads --------------------------------------------------------------------------------

    def submit(self, workload: Workload, now_ns: int = 0) -> None:
        """A workload, new or changed, pending or already holding quota."""
        key = workload.key
        self._homeless.pop(key, None)
        if workload.is_true(FINISHED):
            self.delete(key, now_ns)
            return
        if workload.admission is not None:
            self._hold(workload, now_ns)
            return
        local = self._local_queues.get(f"{workload.namespace}/{workload.queue_name}")
        why = self._why_homeless(workload, local)
        if why is not None or local is None:
            self._homeless[key] = (workload, why or "")
            return
        info = WorkloadInfo(
            workload,
            local.cluster_queue,
            self.cache.numbers,
            reclaimable=self.settings.reclaimable_pods,
            priority_sorting=self.settings.priority_sorting_within_cohort,
        )
        self.enqueue(info, now_ns)

    def enqueue(self, info: WorkloadInfo, now_ns: int = 0) -> None:
        self._leave_line(info.key)
        self._queue_of[info.key] = info.cluster_queue
        not_before = info.workload.requeue_state.requeue_at_ns or 0
        self.pending[info.cluster_queue].push(info, not_before, now_ns)

    def _leave_line(self, key: WorkloadKey) -> None:
        queue = self._queue_of.pop(key, None)
        if queue is not None and queue in self.pending:
            self.pending[queue].remove(key)

    def _why_homeless(self, workload: Workload, local: LocalQueue | None) -> str | None:
        if not workload.active:
            return "The workload is deactivated"
        if local is None:
            return f"LocalQueue {workload.queue_name} doesn't exist"
        if local.stop_policy is not StopPolicy.NONE:
            return f"LocalQueue {local.name} is stopped ({local.stop_policy})"
        if local.cluster_queue not in self.pending:
            return f"ClusterQueue {local.cluster_queue} doesn't exist"
        return None

    def _hold(self, workload: Workload, now_ns: int) -> None:
        assert workload.admission is not None
        self._leave_line(workload.key)
        self.release(workload.key, now_ns)
        queue = workload.admission.cluster_queue
        if queue not in self.cache.queues:
            self._homeless[workload.key] = (workload, f"ClusterQueue {queue} doesn't exist")
            return
        info = WorkloadInfo(
            workload, queue, self.cache.numbers, reclaimable=self.settings.reclaimable_pods
        )
        self._holding[info.key] = info
        self.cache.add_workload(info)

    def release(self, key: WorkloadKey, now_ns: int = 0) -> WorkloadInfo | None:
        """The workload holds quota no longer: it finished, or stopped after its eviction."""
        info = self._holding.pop(key, None)
        if info is not None:
            self._will_free(self.cache.queues[info.cluster_queue].node.root, now_ns)
            self.cache.remove_workload(info)
        return info

    def delete(self, key: WorkloadKey, now_ns: int = 0) -> None:
        self.release(key, now_ns)
        self._leave_line(key)
        self._homeless.pop(key, None)

    def holding(self, key: WorkloadKey) -> WorkloadInfo | None:
        return self._holding.get(key)

    def homeless(self, key: WorkloadKey) -> str | None:
        found = self._homeless.get(key)
        return found[1] if found else None

    def next_wake_ns(self) -> int | None:
        """When a cycle may decide something although no event came, if ever."""
        times = [queue.wakes_at_ns() for queue in self.pending.values()]
        times += [gate.due_ns for gate in self._gates.values()]
        return min((time for time in times if time is not None), default=None)

    def _freed(self, root: QuotaNode, now_ns: int) -> int:
        """`root.freed` as those set aside may know it: late by the requeue delay."""
        delay_ns = self.settings.requeue_delay_ns
        if delay_ns == 0:
            return root.freed
        gate = self._gates.get(root)
        if gate is None:  # a tree that was just built is news like any other
            gate = self._gates[root] = _Gate(root.freed, now_ns + delay_ns)
        elif gate.due_ns is not None and gate.due_ns <= now_ns:
            gate.seen, gate.due_ns = root.freed, None
        return gate.seen

    def _will_free(self, root: QuotaNode, now_ns: int) -> None:
        """Called before quota is freed: news that is due by now does not include it."""
        delay_ns = self.settings.requeue_delay_ns
        if delay_ns:
            self._freed(root, now_ns)
            gate = self._gates[root]
            if gate.due_ns is None:
                gate.due_ns = now_ns + delay_ns

    # -- the cycle --------------------------------------------------------------------------------

    def cycle(self, now_ns: int) -> CycleResult:
        for root in self._gates:
            self._freed(root, now_ns)
        cycle = Cycle(self.cache, self.settings, now_ns)
        entries: list[Entry] = []
        unfit: list[Entry] = []
        unwelcome: list[Entry] = []
        trees = self._trees
        for _ in range(len(trees)):
            if len(entries) >= self.settings.max_heads_per_cycle:
                cycle.result.more = True
                break
            names = trees[self._next_tree]
            self._next_tree = (self._next_tree + 1) % len(trees)
            for name in names:
                queue = self.pending[name]
                if not queue or name in self._inactive:
                    continue
                state = self.cache.queues[name]
                info = queue.head(self._freed(state.node.path[-1], now_ns), now_ns)
                if info is None:
                    continue
                if not self._is_welcome(info):
                    unwelcome.append(_unfit_entry(info, cycle, _UNWELCOME))
                    continue
                why = self._why_unfit(info)
                if why is not None:
                    unfit.append(_unfit_entry(info, cycle, why))
                else:
                    entries.append(cycle.nominate(info))
        cycle.result.heads = len(entries) + len(unfit) + len(unwelcome)
        cycle.serve(entries)
        for slice_ in cycle.result.replaced:
            self._holding.pop(slice_.key, None)
        for entry in unwelcome:
            # Even a StrictFIFO queue does not wait for a namespace to change its labels.
            cycle.report_pending(entry)
            self.pending[entry.queue.name].set_aside(entry.info)
        for entry in (*unfit, *entries):
            if entry.status is Status.ADMITTED:
                self._leave_line(entry.info.key)
                self._holding[entry.info.key] = entry.info
            else:
                self._put_back(cycle, entry)
        return cycle.result

    def _why_unfit(self, info: WorkloadInfo) -> tuple[PendingReason, str] | None:
        """Reasons that have nothing to do with quota."""
        workload = info.workload
        for check in workload.admission_checks:
            if check.state in (CheckState.RETRY, CheckState.REJECTED):
                return PendingReason.MISCONFIGURED, "The workload has failed admission checks"
        for one in workload.pod_sets:
            if one.over_limit is not None:
                message = f"resources validation failed: {one.over_limit}"
                return PendingReason.MISCONFIGURED, message
        for limits in self._limit_ranges.get(workload.namespace, ()):
            message = limits.violation(workload.pod_sets) or ""
            if message:
                return PendingReason.MISCONFIGURED, message
        return None

    def _is_welcome(self, info: WorkloadInfo) -> bool:
        selector = self.cache.queues[info.cluster_queue].spec.namespace_selector
        if selector is None:
            return self.settings.missing_selector_admits_all
        return selector.matches(self._namespaces.get(info.workload.namespace, {}))

    def _put_back(self, cycle: Cycle, entry: Entry) -> None:
        cycle.report_pending(entry)
        queue, info = self.pending[entry.queue.name], entry.info
        if entry.status is Status.PREEMPTING:
            if queue.strategy is QueueingStrategy.BEST_EFFORT_FIFO:
                queue.keep_first(info)
            return
        queue.let_go(info)
        if entry.resumed and entry.status is Status.NOT_NOMINATED:
            # The flavors before those just tried deserve another look before it is set aside: it
            # may have missed them only because of an earlier entry of a past cycle.
            info.last_assignment = None
            return
        strict = queue.strategy is QueueingStrategy.STRICT_FIFO
        last = info.last_assignment
        if strict or entry.requeue_at_once or (last is not None and last.has_pending_flavors):
            return
        if entry.shape_is_to_blame:
            queue.set_shape_aside(info)
        else:
            queue.set_aside(info)


def _unfit_entry(info: WorkloadInfo, cycle: Cycle, why: tuple[PendingReason, str]) -> Entry:
    entry = cycle.unfit(info)
    entry.misfit(*why, shape_is_to_blame=False)
    return entry
