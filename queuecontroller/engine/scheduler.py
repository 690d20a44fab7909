"""The scheduler: objects and workloads come in as events, decisions come out of cycles.

No clock and no I/O: every call that needs the time is given it. The shell submits workloads, runs
`cycle` whenever something changed (or `next_wake_ns` has come), carries the decisions out and says
when a workload finished or a preempted one has stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from .assignment import HOPELESS, PendingReason
from .cache import Cache
from .cluster_queue import ClusterQueueState
from .cycle import Cycle
from .decisions import CycleResult
from .entries import Entry, Status
from .fair_pending import FairPendingQueue
from .limit_range import LimitRange
from .model import CheckState, LocalQueue, QueueingStrategy, StopPolicy, Workload, WorkloadKey
from .pending import PendingQueue
from .quota_tree import QuotaNode
from .room import Room
from .settings import AdmissionFairSharing, EngineSettings
from .trees import NEVER_NS, GoesOn, Tree
from .usage_history import NOTHING, Amounts, UsageHistory
from .workload_info import BEGIN, FINISHED, WorkloadInfo
from .yielding import Yielding

_UNWELCOME: Final = (
    PendingReason.MISCONFIGURED,
    "Workload namespace doesn't match ClusterQueue selector",
)


class Scheduler:
    def __init__(self, settings: EngineSettings | None = None, room: Room | None = None) -> None:
        """Without a room quota alone decides, as in Kueue."""
        self.settings = settings or EngineSettings()
        self.room = room
        self.cache = Cache()
        if room is not None:
            self.cache.holders.listener = room.moved
        self.pending: dict[str, PendingQueue] = {}
        self._local_queues: dict[str, LocalQueue] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._limit_ranges: dict[str, Sequence[LimitRange]] = {}
        self._homeless: dict[WorkloadKey, tuple[Workload, str]] = {}
        """Workloads no queue takes, and why."""
        self._holding: dict[WorkloadKey, WorkloadInfo] = {}
        self._yielding = Yielding()
        self._queue_of: dict[WorkloadKey, str] = {}
        """The ClusterQueue a pending workload stands in."""
        self._trees: dict[QuotaNode, Tree] = {}
        self._round: list[Tree] = []
        """The same in order; `_next_tree` is where the next cycle begins."""
        self._next_tree = 0
        self._cycles = 0
        self._inactive: dict[str, str] = {}
        """ClusterQueues nothing is admitted through, and why."""
        self._doors: set[str] = set()
        """LocalQueues that changed since the last `settle`."""
        self._all_anew = False
        """Whether something changed that concerns every ClusterQueue."""

    # -- objects ----------------------------------------------------------------------------------

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = labels
            self._look_again_at(name)

    def put_limit_ranges(self, namespace: str, limits: Sequence[LimitRange]) -> None:
        if self._limit_ranges.get(namespace, ()) != tuple(limits):
            self._limit_ranges[namespace] = tuple(limits)
            self._look_again_at(namespace)

    def _look_again_at(self, namespace: str) -> None:
        """At the ClusterQueues that workloads of the namespace may stand in."""
        doors = [one for one in self._local_queues.values() if one.namespace == namespace]
        for name in {one.cluster_queue for one in doors} & self.pending.keys():
            self.pending[name].reconsider()
            self._tree_of(name).restless = True

    def put_local_queue(self, queue: LocalQueue) -> None:
        before = self._local_queues.get(queue.key)
        if before is None or _leads_to(before) != _leads_to(queue):
            self._doors.add(queue.key)
        self._local_queues[queue.key] = queue
        if self.history is not None:
            self.history.put_queue(queue.key, queue.fair_weight_milli, queue.cluster_queue)
            if queue.cluster_queue in self.pending:  # its weight may change who is next
                self._tree_of(queue.cluster_queue).restless = True

    def drop_local_queue(self, key: str) -> None:
        if self._local_queues.pop(key, None) is not None:
            self._doors.add(key)
        if self.history is not None:
            self.history.drop_queue(key)

    @property
    def history(self) -> UsageHistory | None:
        """What LocalQueues have used; None where admission fair sharing is off."""
        return self.cache.history

    def share_admission(self, settings: AdmissionFairSharing | None, now_ns: int) -> None:
        """Switches admission fair sharing on, over or off. Call `settle` then."""
        self._all_anew = True
        history = self.cache.history
        if settings is None:
            self.cache.history = None
        elif history is not None:
            history.configure(settings, now_ns)
        else:
            history = self.cache.history = UsageHistory(settings)
            for queue in self._local_queues.values():
                history.put_queue(queue.key, queue.fair_weight_milli, queue.cluster_queue)
            for info in self._holding.values():
                self._note_usage(info, now_ns)
            history.restore(())

    def settle(self, now_ns: int = 0) -> None:
        """Takes changed objects into effect: rebuilds the trees they touch, looks at everybody in
        those again, and finds everyone whose LocalQueue changed a queue. Nobody else notices."""
        touched = self.cache.settle()
        if self._all_anew:
            touched |= self.cache.queues.keys()
        if touched:
            self._all_anew = False
            new = {name for name in touched if name not in self.pending}
            self._renew(touched)
        else:
            new = set()
        for workload in self._to_submit_again(new):
            self.submit(workload, now_ns)

    def _renew(self, touched: frozenset[str]) -> None:
        for name in touched:
            state = self.cache.queues.get(name)
            self._inactive.pop(name, None)
            if state is None:
                line = self.pending.pop(name, None)
                for info in line.everyone() if line is not None else ():
                    self._queue_of.pop(info.key, None)
                    self._homeless[info.key] = (info.workload, f"ClusterQueue {name} doesn't exist")
                continue
            why = self.cache.why_inactive(name)
            if why is not None:
                self._inactive[name] = why
            queue = self.pending.get(name)
            history = self.history if self.cache.is_by_usage(state) else None
            if queue is None or queue.history is not history:
                self.pending[name] = _new_line(state, history, queue)
            else:
                queue.strategy = state.spec.queueing_strategy
                queue.reconsider()
        before, self._trees = self._trees, {}
        for name, state in self.cache.queues.items():
            root = state.node.root
            tree = self._trees.get(root)
            if name not in touched:  # and neither is any other in its tree
                self._trees[root] = tree or before[root]
                continue
            if tree is None:
                tree = self._trees[root] = Tree(root, self.settings, self.room)
                if root in before:
                    tree.known, tree.due_ns = before[root].known, before[root].due_ns
            if name not in self._inactive:
                tree.members.append(self.pending[name])
                tree.by_usage |= self.cache.is_by_usage(state)
                tree.by_usage |= self.cache.scope_of(state) is not None
        self._round, self._next_tree = list(self._trees.values()), 0
        for tree in self._round:
            tree.set_alarm()

    def _to_submit_again(self, new: Collection[str]) -> list[Workload]:
        """Those whose LocalQueue changed, and those that waited for a ClusterQueue."""
        doors, self._doors = self._doors, set()
        opened = {one.key for one in self._local_queues.values() if one.cluster_queue in new}
        doors |= opened
        if not doors and not new:
            return []
        found = [
            workload
            for workload, _ in self._homeless.values()
            if workload.local_queue in doors
            or (workload.admission is not None and workload.admission.cluster_queue in new)
        ]
        for line in self.pending.values() if doors - opened else ():
            found += [one.workload for one in line.everyone() if one.workload.local_queue in doors]
        return found

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
            self._leave_line(key)
            self._look_again_at_victims(self._yielding.gone(key))
            self._homeless[key] = (workload, why or "")
            return
        info = WorkloadInfo(
            workload,
            local.cluster_queue,
            self.cache.numbers,
            reclaimable=self.settings.reclaimable_pods,
            priority_sorting=self.settings.priority_sorting_within_cohort,
        )
        if self.room is not None:
            info.room_shape = self.room.shape(workload)
            self.room.let_go(key)
        self.enqueue(info, now_ns)

    def enqueue(self, info: WorkloadInfo, now_ns: int = 0) -> None:
        self._leave_line(info.key)
        self._queue_of[info.key] = info.cluster_queue
        not_before = info.workload.requeue_state.requeue_at_ns or 0
        self.pending[info.cluster_queue].push(info, not_before, now_ns)
        tree = self._tree_of(info.cluster_queue)
        tree.restless = True
        if not_before > now_ns:
            tree.wakes_ns = min(tree.wakes_ns, not_before)

    def _tree_of(self, cluster_queue: str) -> Tree:
        return self._trees[self.cache.queues[cluster_queue].node.path[-1]]

    def _leave_line(self, key: WorkloadKey) -> None:
        queue = self._queue_of.pop(key, None)
        if queue is not None and queue in self.pending:
            self.pending[queue].remove(key)
            self._tree_of(queue).restless = True

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

    def _look_again_at_victims(self, victims: Sequence[WorkloadKey]) -> None:
        for victim in victims:
            queue = self._queue_of.get(victim)
            if queue is not None and queue in self.pending:
                self.pending[queue].reconsider()
                self._tree_of(queue).restless = True

    def _hold(self, workload: Workload, now_ns: int) -> None:
        assert workload.admission is not None
        self._leave_line(workload.key)
        self._look_again_at_victims(self._yielding.let_pass(workload.key))
        self._release(workload.key, now_ns)
        queue = workload.admission.cluster_queue
        if queue not in self.cache.queues:
            self._homeless[workload.key] = (workload, f"ClusterQueue {queue} doesn't exist")
            return
        info = WorkloadInfo(
            workload, queue, self.cache.numbers, reclaimable=self.settings.reclaimable_pods
        )
        self._holding[info.key] = info
        self.cache.add_workload(info)
        self._note_usage(info, now_ns)

    def _note_usage(self, info: WorkloadInfo, now_ns: int, penalized: Amounts = NOTHING) -> None:
        """From now on its LocalQueue uses what it holds."""
        if self.history is not None:
            usage = self.cache.numbers.by_resource(info.usage)
            self.history.hold(info.key, info.workload.local_queue, usage, now_ns, penalized)

    def release(self, key: WorkloadKey, now_ns: int = 0) -> WorkloadInfo | None:
        """The workload holds quota no longer: it finished, or stopped after its eviction."""
        if self.room is not None:
            self.room.let_go(key)
        return self._release(key, now_ns)

    def _release(self, key: WorkloadKey, now_ns: int) -> WorkloadInfo | None:
        info = self._holding.pop(key, None)
        if info is not None:
            self._tree_of(info.cluster_queue).will_free(now_ns)
            self.cache.remove_workload(info)
            history = self.cache.history
            if history is not None:
                history.release(key, now_ns)
        return info

    def delete(self, key: WorkloadKey, now_ns: int = 0) -> None:
        self.release(key, now_ns)
        self._leave_line(key)
        self._look_again_at_victims(self._yielding.gone(key))
        self._homeless.pop(key, None)

    def holding(self, key: WorkloadKey) -> WorkloadInfo | None:
        return self._holding.get(key)

    def homeless(self, key: WorkloadKey) -> str | None:
        found = self._homeless.get(key)
        return found[1] if found else None

    def queue_of(self, key: WorkloadKey) -> str:
        """The ClusterQueue a pending workload stands in; empty for none."""
        return self._queue_of.get(key, "")

    def local_queue(self, key: str) -> LocalQueue | None:
        """By NAMESPACE/NAME."""
        return self._local_queues.get(key)

    def preemption_turns(self, one: WorkloadKey, other: WorkloadKey) -> int:
        """How often the two preempted each other; 0 unless both did."""
        return self._yielding.turns(one, other)

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        return self._namespaces.get(name, {})

    def next_wake_ns(self) -> int | None:
        """When a cycle may decide something although no event came, if ever."""
        soonest = min((tree.wakes_ns for tree in self._round), default=NEVER_NS)
        for tree in self._round:
            if tree.due_ns is not None and tree.due_ns < soonest:
                soonest = tree.due_ns
        return None if soonest == NEVER_NS else soonest

    # -- the cycle --------------------------------------------------------------------------------

    def cycle(self, now_ns: int) -> CycleResult:
        history = self.cache.history
        if history is not None and history.sample(now_ns):
            self._reorder()
        cycle = Cycle(self.cache, self.settings, now_ns, self.room, self._yielding)
        entries: list[Entry] = []
        unfit: list[Entry] = []
        unwelcome: list[Entry] = []
        round_ = self._round
        for _ in range(len(round_)):
            tree = round_[self._next_tree]
            news = tree.is_news(now_ns)
            full = len(entries) >= self.settings.max_heads_per_cycle
            if full and (news or tree.goes_on is GoesOn.AT_ONCE):
                cycle.result.more = True
                break
            self._next_tree = (self._next_tree + 1) % len(round_)
            if full or not (news or tree.goes_on):
                continue
            heads = tree.heads(now_ns)
            for info in _longest_put_off_first(heads):
                if not self.is_welcome(info):
                    unwelcome.append(_unfit_entry(info, cycle, _UNWELCOME))
                    continue
                why = self.why_unfit(info)
                if why is not None:
                    unfit.append(_unfit_entry(info, cycle, why))
                else:
                    entries.append(cycle.nominate(info, news))
        self._note_put_off(entries)
        cycle.result.heads = len(entries) + len(unfit) + len(unwelcome)
        cycle.serve(entries)
        for slice_ in cycle.result.replaced:
            self._holding.pop(slice_.key, None)
            if history is not None:
                history.release(slice_.key, now_ns)
        for entry in unwelcome:
            # Even a StrictFIFO queue does not wait for a namespace to change its labels.
            cycle.report_pending(entry)
            self.pending[entry.queue.name].set_aside(entry.info)
        aside = [entry.queue.name for entry in unwelcome]
        for one in cycle.result.preempted:
            self._yielding.preempted(one.target.key, one.preemptor.key)
        for entry in (*unfit, *entries):
            if entry.status is Status.ADMITTED:
                self._leave_line(entry.info.key)
                self._look_again_at_victims(self._yielding.let_pass(entry.info.key))
                self._holding[entry.info.key] = entry.info
                if history is not None:
                    self._note_admission(entry, now_ns)
            elif self._put_back(cycle, entry):
                aside.append(entry.queue.name)
        if aside:
            # Those skipped may only have met what was reserved for one that is set aside now.
            cycle.result.more |= any(entry.status is Status.SKIPPED for entry in entries)
        for name in aside:
            tree = self._tree_of(name)
            tree.restless = True
            cycle.result.more |= self.pending[name].head(tree.told, now_ns) is not None
        return cycle.result

    def _note_put_off(self, entries: Sequence[Entry]) -> None:
        """The next cycle begins with the tree of the one that was put off first."""
        self._cycles += 1
        longest: WorkloadInfo | None = None
        for entry in entries:
            if not entry.put_off:
                continue
            info = entry.info
            if info.put_off == 1:
                info.put_off_since = self._cycles
            if longest is None or info.put_off_since < longest.put_off_since:
                longest = info
        if longest is not None:
            self._next_tree = self._round.index(self._tree_of(longest.cluster_queue))

    def _note_admission(self, entry: Entry, now_ns: int) -> None:
        penalized: Amounts = NOTHING
        if self.cache.is_by_usage(entry.queue):
            # A slice that took another's place pays for the difference, which is all it asked for.
            penalized = self.cache.numbers.by_resource(entry.assignment.usage)
        self._note_usage(entry.info, now_ns, penalized)

    def _reorder(self) -> None:
        """Histories were sampled anew: who is next may differ where they decide, and whom it would
        preempt."""
        for tree in self._round:
            if tree.by_usage:
                tree.root.generation += 1

    def why_unfit(self, info: WorkloadInfo) -> tuple[PendingReason, str] | None:
        """Reasons that have nothing to do with quota."""
        workload = info.workload
        preemptor = self._yielding.preemptor_of(info.key)
        if preemptor is not None:
            message = f"Workload was preempted for {preemptor}, which is to start first"
            return PendingReason.WAITING_FOR_PREEMPTOR, message
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

    def is_welcome(self, info: WorkloadInfo) -> bool:
        """Whether its ClusterQueue serves its namespace."""
        selector = self.cache.queues[info.cluster_queue].spec.namespace_selector
        if selector is None:
            return self.settings.missing_selector_admits_all
        return selector.matches(self._namespaces.get(info.workload.namespace, {}))

    def _put_back(self, cycle: Cycle, entry: Entry) -> bool:
        """Whether it was set aside."""
        cycle.report_pending(entry)
        queue, info = self.pending[entry.queue.name], entry.info
        if entry.reason in HOPELESS and not entry.resumed:
            self._look_again_at_victims(self._yielding.let_pass(info.key))
        if entry.put_off:
            self._goes_on(cycle, queue, at_once=True)
            return False
        if self.room is not None and entry.status is not Status.PREEMPTING:
            self.room.let_go(info.key)
            tree = self._tree_of(queue.name)
            tree.lacks_room |= entry.reason is PendingReason.WAITING_FOR_PLACEMENT
        if entry.status is Status.PREEMPTING:
            if queue.strategy is QueueingStrategy.BEST_EFFORT_FIFO:
                queue.keep_first(info)
            return False
        if entry.goes_on:
            if entry.status is Status.SKIPPED and not self.settings.preserve_scan_progress:
                info.last_assignment = BEGIN
            self._goes_on(cycle, queue, at_once=True)
            return False
        if queue.strategy is QueueingStrategy.STRICT_FIFO or entry.requeue_at_once:
            if entry.resumed:  # its next pass begins with the first flavor again
                self._goes_on(cycle, queue, at_once=False)
            return False
        info.memo = None  # it is looked at again only when something has changed
        if entry.shape_is_to_blame:
            queue.set_shape_aside(info)
        else:
            queue.set_aside(info)
        return True

    def _goes_on(self, cycle: Cycle, queue: PendingQueue, at_once: bool) -> None:
        tree = self._tree_of(queue.name)
        tree.goes_on = max(tree.goes_on, GoesOn.AT_ONCE if at_once else GoesOn.AT_LEISURE)
        cycle.result.more |= at_once


def _longest_put_off_first(heads: list[WorkloadInfo]) -> list[WorkloadInfo]:
    """So that everybody's room is searched some day; the order of judging decides nothing else."""
    if not any(info.put_off for info in heads):
        return heads
    return sorted(heads, key=lambda info: info.put_off_since if info.put_off else NEVER_NS)


def _leads_to(queue: LocalQueue) -> tuple[str, StopPolicy]:
    """All of it that concerns who waits in it."""
    return queue.cluster_queue, queue.stop_policy


def _new_line(
    state: ClusterQueueState, history: UsageHistory | None, before: PendingQueue | None
) -> PendingQueue:
    """For a ClusterQueue that has none yet, or whose admission mode changed."""
    strategy = state.spec.queueing_strategy
    if history is not None:
        made: PendingQueue = FairPendingQueue(state.name, strategy, history)
    else:
        made = PendingQueue(state.name, strategy)
    for info in before.everyone() if before is not None else ():
        made.push(info, info.workload.requeue_state.requeue_at_ns or 0)
    return made


def _unfit_entry(info: WorkloadInfo, cycle: Cycle, why: tuple[PendingReason, str]) -> Entry:
    entry = cycle.unfit(info)
    entry.misfit(*why, shape_is_to_blame=False)
    return entry
