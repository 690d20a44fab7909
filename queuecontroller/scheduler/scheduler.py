"""The scheduler: objects and workloads are its events, and each cycle returns decisions.

No clock and no I/O: every call that needs the time gets it as an argument. The shell submits
workloads, runs `cycle` whenever something changed (or at `next_wake_ns`), carries the decisions out
and reports when a workload has finished or a victim has stopped.

Longer than a file should be: events and the steps of the cycle that use the pending queues change
the same few tables, and a reader of one needs the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from queuecontroller.scheduler.cycle import Cycle
from queuecontroller.scheduler.entries import Entry, Heads, Status
from queuecontroller.scheduler.model.assignment import HOPELESS, NO_ROOM
from queuecontroller.scheduler.model.checkpointed import keeper, keeper_of
from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.limit_range import LimitRange
from queuecontroller.scheduler.model.objects import (
    LocalQueue,
    QueueingStrategy,
    StopPolicy,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import FINISHED, PreemptionReason
from queuecontroller.scheduler.model.settings import (
    AdmissionFairSharing,
    EngineSettings,
    PreemptionProtection,
)
from queuecontroller.scheduler.model.workload_info import BEGIN, WorkloadInfo
from queuecontroller.scheduler.pending.fair import FairPendingQueue
from queuecontroller.scheduler.pending.fifo import PendingQueue, Why
from queuecontroller.scheduler.pending.round import Round
from queuecontroller.scheduler.pending.trees import LookAgain, Tree
from queuecontroller.scheduler.preemption.room import Room
from queuecontroller.scheduler.preemption.yielding import Yielding
from queuecontroller.scheduler.quota.cache import Cache
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.scheduler.quota.usage_history import NOTHING, Amounts, UsageHistory
from queuecontroller.scheduler.validation import Validation


class Scheduler:
    def __init__(self, settings: EngineSettings | None = None, room: Room | None = None) -> None:
        """Without a room quota alone decides, as in Kueue."""
        self.settings = settings or EngineSettings()
        self.room = room
        self.cache = Cache()
        self.cache.protection = self.settings.protection
        if room is not None:
            self.cache.holders.listener = room.moved
        self.pending: dict[str, PendingQueue] = {}
        self._local_queues: dict[str, LocalQueue] = {}
        self._unqueued: dict[WorkloadKey, tuple[Workload, str]] = {}
        """Workloads in no ClusterQueue, and the reason."""
        self._holding: dict[WorkloadKey, WorkloadInfo] = {}
        self._with_keepers: set[WorkloadKey] = set()
        """Workloads that keep something while their pods are checkpointed."""
        self._yielding = Yielding()
        self.validation = Validation(self.settings, self._yielding)
        self._queue_of: dict[WorkloadKey, str] = {}
        """The ClusterQueue of each pending workload."""
        self._round = Round()
        self._cycles = 0
        self._unreported: list[WorkloadKey] = []
        """See `CycleResult.unreported`."""
        self._inactive: dict[str, str] = {}
        """ClusterQueues that admit nothing, and the reason."""
        self._changed_local_queues: set[str] = set()
        """LocalQueues that changed since the last `settle`."""
        self._all_changed = False
        """True if something changed that concerns every ClusterQueue."""

    # -- objects ----------------------------------------------------------------------------------

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        if self.validation.put_namespace(name, labels):
            self._requeue_namespace(name)

    def put_limit_ranges(self, namespace: str, limits: Sequence[LimitRange]) -> None:
        if self.validation.put_limit_ranges(namespace, limits):
            self._requeue_namespace(namespace)

    def _requeue_namespace(self, namespace: str) -> None:
        """Requeue inadmissible workloads in the ClusterQueues that the namespace may use."""
        queues = [one for one in self._local_queues.values() if one.namespace == namespace]
        for name in {one.cluster_queue for one in queues} & self.pending.keys():
            self.pending[name].requeue_inadmissible()
            self._tree_of(name).pending_changed = True

    def put_local_queue(self, queue: LocalQueue) -> None:
        before = self._local_queues.get(queue.key)
        if before is None or _leads_to(before) != _leads_to(queue):
            self._changed_local_queues.add(queue.key)
        self._local_queues[queue.key] = queue
        if self.history is not None:
            self.history.put_queue(queue.key, queue.fair_weight_milli, queue.cluster_queue)
            if queue.cluster_queue in self.pending:  # its weight may change the head
                self._tree_of(queue.cluster_queue).pending_changed = True

    def drop_local_queue(self, key: str) -> None:
        if self._local_queues.pop(key, None) is not None:
            self._changed_local_queues.add(key)
        if self.history is not None:
            self.history.drop_queue(key)

    @property
    def history(self) -> UsageHistory | None:
        """Usage of LocalQueues; None where admission fair sharing is disabled."""
        return self.cache.history

    def share_admission(self, settings: AdmissionFairSharing | None, now_ns: int) -> None:
        """Enable, change or disable admission fair sharing. Call `settle` afterwards."""
        self._all_changed = True
        history = self.cache.history
        if settings is None:
            self.cache.history = None
        elif history is not None:
            moved = settings.from_reservation != history.settings.from_reservation
            history.configure(settings, now_ns)
            for info in self._holding.values() if moved else ():
                self._note_usage(info, now_ns)
        else:
            history = self.cache.history = UsageHistory(settings)
            for queue in self._local_queues.values():
                history.put_queue(queue.key, queue.fair_weight_milli, queue.cluster_queue)
            for info in self._holding.values():
                self._note_usage(info, now_ns)
            history.restore(())

    def settle(self, now_ns: int = 0) -> None:
        """Apply changed objects: rebuild the cohort trees they touch, requeue the inadmissible
        workloads of those trees, and submit again all workloads whose LocalQueue changed. Workloads
        in other trees are not evaluated again."""
        touched = self.cache.settle()
        if self._all_changed:
            touched |= self.cache.queues.keys()
        if touched:
            self._all_changed = False
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
                    self._unqueued[info.key] = (info.workload, f"ClusterQueue {name} doesn't exist")
                continue
            why = self.cache.why_inactive(name)
            if why is not None:
                self._inactive[name] = why
            queue = self.pending.get(name)
            history = self.history if self.cache.is_by_usage(state) else None
            if queue is None or queue.history is not history:
                self.pending[name] = _new_line(state, history, queue, self._unreported)
            else:
                queue.strategy = state.spec.queueing_strategy
                queue.requeue_inadmissible()
        self._round.renew(self._rebuilt_trees(touched))

    def _rebuilt_trees(self, touched: frozenset[str]) -> dict[QuotaNode, Tree]:
        before = self._round.trees
        trees: dict[QuotaNode, Tree] = {}
        for name, state in self.cache.queues.items():
            root = state.node.root
            tree = trees.get(root)
            if name not in touched:  # and neither is any other in its tree
                trees[root] = tree or before[root]
                continue
            if tree is None:
                tree = trees[root] = Tree(root, self.settings, self.room)
                if root in before:
                    tree.known, tree.due_ns = before[root].known, before[root].due_ns
            if name not in self._inactive:
                tree.members.append(self.pending[name])
                tree.by_usage |= self.cache.is_by_usage(state)
                tree.by_usage |= self.cache.scope_of(state) is not None
        return trees

    def _to_submit_again(self, new: Collection[str]) -> list[Workload]:
        """Workloads whose LocalQueue changed, and those that waited for a ClusterQueue."""
        changed, self._changed_local_queues = self._changed_local_queues, set()
        opened = {one.key for one in self._local_queues.values() if one.cluster_queue in new}
        changed |= opened
        if not changed and not new:
            return []
        found = [
            workload
            for workload, _ in self._unqueued.values()
            if workload.local_queue in changed
            or (workload.admission is not None and workload.admission.cluster_queue in new)
        ]
        for line in self.pending.values() if changed - opened else ():
            found += [
                one.workload for one in line.everyone() if one.workload.local_queue in changed
            ]
        return found

    # -- workloads --------------------------------------------------------------------------------

    def submit(self, workload: Workload, now_ns: int = 0) -> None:
        """Add or update a workload that is pending or holds quota already."""
        key = workload.key
        self._unqueued.pop(key, None)
        if workload.is_true(FINISHED):
            self.delete(key, now_ns)
            return
        if workload.admission is not None:
            self._hold(workload, now_ns)
            self.drop_keeper(key, now_ns)
            return
        workload = self._with_keeper(workload, now_ns)
        local = self._local_queues.get(f"{workload.namespace}/{workload.queue_name}")
        why = self._why_unqueued(workload, local)
        if why is not None or local is None:
            self._leave_line(key)
            self._look_again_at_victims(self._yielding.gone(key))
            self._unqueued[key] = (workload, why or "")
            return
        info = WorkloadInfo(
            workload,
            local.cluster_queue,
            self.cache.numbers,
            reclaimable=self.settings.reclaimable_pods,
            priority_sorting=self.settings.priority_sorting_within_cohort,
            by_eviction=self.settings.requeued_by_eviction,
        )
        if self.room is not None:
            info.room_shape = self.room.shape(workload)
            self.room.release(key)
        self.enqueue(info, now_ns)

    def _with_keeper(self, workload: Workload, now_ns: int) -> Workload:
        """The workload as one that takes over from its keeper, if its pods are checkpointed."""
        if workload.checkpointed is None:
            self.drop_keeper(workload.key, now_ns)
            return workload
        mine = keeper_of(workload.key)
        self._with_keepers.add(workload.key)
        kept, known = keeper(workload), self._holding.get(mine)
        if known is None or known.workload != kept:
            self._unqueued.pop(mine, None)
            self._hold(kept, now_ns)
        return replace(workload, replaces=mine)

    def drop_keeper(self, key: WorkloadKey, now_ns: int) -> None:
        """Release what a workload kept while its pods were checkpointed, if it did."""
        if key in self._with_keepers:
            self._with_keepers.discard(key)
            self._unqueued.pop(keeper_of(key), None)
            self.release(keeper_of(key), now_ns)

    def enqueue(self, info: WorkloadInfo, now_ns: int = 0) -> None:
        self._leave_line(info.key)
        self._queue_of[info.key] = info.cluster_queue
        not_before = info.workload.requeue_state.requeue_at_ns or 0
        self.pending[info.cluster_queue].push(info, not_before, now_ns)
        tree = self._tree_of(info.cluster_queue)
        tree.pending_changed = True
        if not_before > now_ns:
            tree.wakes_ns = min(tree.wakes_ns, not_before)

    def _tree_of(self, cluster_queue: str) -> Tree:
        return self._round.trees[self.cache.queues[cluster_queue].node.path[-1]]

    def _leave_line(self, key: WorkloadKey) -> None:
        queue = self._queue_of.pop(key, None)
        if queue is not None and queue in self.pending:
            self.pending[queue].remove(key)
            self._tree_of(queue).pending_changed = True

    def _why_unqueued(self, workload: Workload, local: LocalQueue | None) -> str | None:
        if workload.is_given_up:
            return "Its checkpoint is of no use: its pods have to stop first"
        if not workload.active:
            return "The workload is deactivated"
        if workload.is_on_hold:
            return "Quota intentionally released while scaled to zero"
        if workload.is_gated:
            return f"Admission is gated by: {workload.gated_by}"
        if local is None:
            return f"LocalQueue {workload.queue_name} doesn't exist"
        if local.stop_policy is not StopPolicy.NONE:
            return f"LocalQueue {local.name} is inactive: it is stopped ({local.stop_policy})"
        if local.cluster_queue not in self.pending:
            return f"ClusterQueue {local.cluster_queue} doesn't exist"
        return None

    def _look_again_at_victims(self, victims: Sequence[WorkloadKey]) -> None:
        for victim in victims:
            queue = self._queue_of.get(victim)
            if queue is not None and queue in self.pending:
                self.pending[queue].requeue_inadmissible()
                self._tree_of(queue).pending_changed = True

    def _hold(self, workload: Workload, now_ns: int) -> None:
        assert workload.admission is not None
        self._leave_line(workload.key)
        self._look_again_at_victims(self._yielding.let_pass(workload.key))
        self._release(workload.key, now_ns)
        queue = workload.admission.cluster_queue
        if queue not in self.cache.queues:
            self._unqueued[workload.key] = (workload, f"ClusterQueue {queue} doesn't exist")
            return
        info = WorkloadInfo(
            workload, queue, self.cache.numbers, reclaimable=self.settings.reclaimable_pods
        )
        self._holding[info.key] = info
        self.cache.add_workload(info)
        if self.room is not None:
            self.room.restored(workload)
        self._note_usage(info, now_ns)

    def _note_usage(self, info: WorkloadInfo, now_ns: int, penalized: Amounts = NOTHING) -> None:
        """Record its usage in its LocalQueue's history from now on, if it counts already."""
        if self.history is not None:
            counts = self.history.settings.from_reservation or info.admitted_ns is not None
            usage = self.cache.numbers.by_resource(info.usage) if counts else NOTHING
            self.history.hold(info.key, info.workload.local_queue, usage, now_ns, penalized)

    def release(self, key: WorkloadKey, now_ns: int = 0) -> WorkloadInfo | None:
        """Release the workload's quota: it finished, or stopped after its eviction."""
        if self.room is not None:
            self.room.release(key)
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
        self.drop_keeper(key, now_ns)
        self._leave_line(key)
        self._look_again_at_victims(self._yielding.gone(key))
        self._unqueued.pop(key, None)

    def protect(self, protection: PreemptionProtection) -> None:
        """Change the protection at once; requeues workloads that had no preemption candidates."""
        if self.cache.protection != protection:
            self.cache.protection = protection
            for tree in self._round:
                if tree.seen_freed >= 0:  # the tree had pending workloads
                    tree.protected_ns = 0

    def admitted(self, key: WorkloadKey, now_ns: int) -> None:
        """Record that its admission checks are ready: its execution time counts from now on."""
        info = self._holding.get(key)
        if info is not None:
            info.admitted_ns = now_ns
            if self.history is not None and not self.history.settings.from_reservation:
                self._note_usage(info, now_ns)

    def holding(self, key: WorkloadKey) -> WorkloadInfo | None:
        return self._holding.get(key)

    def why_unqueued(self, key: WorkloadKey) -> str | None:
        found = self._unqueued.get(key)
        return found[1] if found else None

    def why_like_others(self, key: WorkloadKey) -> Why | None:
        """Reason why another workload of its shape could not start at the last evaluation."""
        queue = self.pending.get(self._queue_of.get(key, ""))
        return queue.why(key) if queue is not None else None

    def queue_of(self, key: WorkloadKey) -> str:
        """The ClusterQueue of a pending workload; empty for none."""
        return self._queue_of.get(key, "")

    def local_queue(self, key: str) -> LocalQueue | None:
        """The LocalQueue with this NAMESPACE/NAME."""
        return self._local_queues.get(key)

    def preemption_turns(self, one: WorkloadKey, other: WorkloadKey) -> int:
        """How often the two preempted each other; 0 unless both did."""
        return self._yielding.turns(one, other)

    def next_wake_ns(self) -> int | None:
        """Time at which a cycle may decide something without any event, in ns; None: never."""
        return self._round.next_wake_ns()

    # -- the cycle --------------------------------------------------------------------------------

    def cycle(self, now_ns: int) -> CycleResult:
        """Run one scheduling cycle, in the steps that `cycle` numbers."""
        self._sample_usage(now_ns)
        cycle = Cycle(self.cache, self.settings, now_ns, self.room, self._yielding)
        heads = self._choose_heads(cycle, now_ns)
        entries = self._nominate(cycle, heads)
        cycle.serve(cycle.order(entries))
        self._requeue_rest(cycle, heads, entries, now_ns)
        self._note_protected()
        cycle.result.unreported = self._unreported[:]
        self._unreported.clear()
        return cycle.result

    def _choose_heads(self, cycle: Cycle, now_ns: int) -> Heads:
        """Step 1: the heads of the trees that changed, and of those with flavors left to try."""
        heads = Heads()
        for tree in self._round.in_turn():
            changed = tree.has_changed(now_ns)
            full = len(heads.to_nominate) >= self.settings.max_heads_per_cycle
            if full and (changed or tree.look_again is LookAgain.AT_ONCE):
                cycle.result.more = True
                break
            if not full and (changed or tree.look_again):
                self._add_heads(heads, cycle, tree.heads(now_ns), changed)
        return heads

    def _add_heads(
        self, heads: Heads, cycle: Cycle, found: list[WorkloadInfo], changed: bool
    ) -> None:
        for info in found:
            queue = self.cache.queues[info.cluster_queue]
            if not self.validation.namespace_matches(queue, info):
                heads.mismatched.append(cycle.inadmissible(info, self.validation.mismatch(queue)))
                continue
            why = self.validation.why_inadmissible(info)
            if why is not None:
                heads.inadmissible.append(cycle.inadmissible(info, why))
            else:
                heads.to_nominate.append((info, changed))

    def _nominate(self, cycle: Cycle, heads: Heads) -> list[Entry]:
        """Step 2: flavors for each head, and its victims."""
        entries = [cycle.nominate(info, changed) for info, changed in heads.to_nominate]
        self._note_deferred(entries)
        cycle.result.heads = len(entries) + len(heads.inadmissible) + len(heads.mismatched)
        return entries

    def _requeue_rest(
        self, cycle: Cycle, heads: Heads, entries: Sequence[Entry], now_ns: int
    ) -> None:
        """Step 5: admitted workloads leave their queue; all others stay pending or are
        inadmissible."""
        self._end_replaced(cycle.result.replaced, now_ns)
        inadmissible = [entry.queue.name for entry in heads.mismatched]
        for entry in heads.mismatched:
            # Even a StrictFIFO queue does not wait for a namespace to change its labels.
            cycle.report_pending(entry)
            self.pending[entry.queue.name].mark_inadmissible(entry.info)
        for one in cycle.result.preempted:
            self._yielding.preempted(one.target.key, one.preemptor.key)
        for entry in (*heads.inadmissible, *entries):
            if entry.status is Status.ADMITTED:
                self._note_admitted(entry, now_ns)
            elif not self._requeue(cycle, entry):
                inadmissible.append(entry.queue.name)
        if inadmissible:
            # Skipped entries may only have collided with what an entry reserved that is
            # inadmissible now.
            cycle.result.more |= any(entry.status is Status.SKIPPED for entry in entries)
        cycle.result.more |= self._has_other_heads(inadmissible, now_ns)

    def _note_protected(self) -> None:
        """Requeue workloads without candidates when the protection of the first candidate ends."""
        for root, until_ns in self.cache.protected_until.items():
            tree = self._round.trees.get(root)
            if tree is not None:
                tree.protected_ns = min(tree.protected_ns, until_ns)
        self.cache.protected_until.clear()

    def _end_replaced(self, slices: Sequence[WorkloadInfo], now_ns: int) -> None:
        for slice_ in slices:
            self._holding.pop(slice_.key, None)
            if self.history is not None:
                self.history.release(slice_.key, now_ns)

    def _note_admitted(self, entry: Entry, now_ns: int) -> None:
        key = entry.info.key
        self._leave_line(key)
        self._look_again_at_victims(self._yielding.let_pass(key))
        self._holding[key] = entry.info
        if self.history is not None:
            self._note_admission(entry, now_ns)

    def _has_other_heads(self, names: Sequence[str], now_ns: int) -> bool:
        """True if ClusterQueues whose head became inadmissible have another head now."""
        found = False
        for name in names:
            tree = self._tree_of(name)
            tree.pending_changed = True
            found |= self.pending[name].head(tree.seen_freed, now_ns) is not None
        return found

    def _note_deferred(self, entries: Sequence[Entry]) -> None:
        """Let the next cycle begin with the tree of the workload that was deferred first."""
        self._cycles += 1
        longest: WorkloadInfo | None = None
        for entry in entries:
            if not entry.deferred:
                continue
            info = entry.info
            if info.deferrals == 1:
                info.deferred_since = self._cycles
            if longest is None or info.deferred_since < longest.deferred_since:
                longest = info
        if longest is not None:
            self._round.begin_with(self._tree_of(longest.cluster_queue))

    def _note_admission(self, entry: Entry, now_ns: int) -> None:
        penalized: Amounts = NOTHING
        if self.cache.is_by_usage(entry.queue):
            # A slice that replaced another is charged for the difference, which is all it
            # requested.
            penalized = self.cache.numbers.by_resource(entry.assignment.usage)
        self._note_usage(entry.info, now_ns, penalized)

    def _sample_usage(self, now_ns: int) -> None:
        """Sample the usage histories; a new sample may change the heads and their victims."""
        if self.history is not None and self.history.sample(now_ns):
            for tree in self._round:
                if tree.by_usage:
                    tree.root.generation += 1

    def _requeue(self, cycle: Cycle, entry: Entry) -> bool:
        """True if the entry stays pending; False: it is inadmissible until something changes."""
        cycle.report_pending(entry)
        queue, info = self.pending[entry.queue.name], entry.info
        if entry.reason in HOPELESS and not entry.resumed:
            self._look_again_at_victims(self._yielding.let_pass(info.key))
        if entry.deferred:
            self._note_look_again(cycle, queue, at_once=True)
            return True
        if entry.status is Status.PREEMPTING:
            # The victims of a consolidation may be in other trees: their room is what changes.
            if any(one.reason is PreemptionReason.CONSOLIDATION for one in entry.targets):
                self._tree_of(queue.name).lacks_room = True
        elif self.room is not None:
            self.room.release(info.key)
            self._tree_of(queue.name).lacks_room |= entry.reason in NO_ROOM
        if entry.status is Status.PREEMPTING:
            if queue.strategy is QueueingStrategy.BEST_EFFORT_FIFO:
                queue.keep_first(info)
            return True
        if entry.has_pending_flavors:
            if entry.status is Status.SKIPPED and not self.settings.preserve_scan_progress:
                info.last_assignment = BEGIN
            self._note_look_again(cycle, queue, at_once=True)
            return True
        if queue.strategy is QueueingStrategy.STRICT_FIFO or entry.requeue_at_once:
            if entry.resumed:  # its next pass begins with the first flavor again
                self._note_look_again(cycle, queue, at_once=False)
            return True
        info.memo = None  # it is evaluated again only after a change
        if entry.shape_is_to_blame:
            queue.mark_shape_inadmissible(info, (str(entry.reason), entry.message))
        else:
            queue.mark_inadmissible(info)
        return False

    def _note_look_again(self, cycle: Cycle, queue: PendingQueue, at_once: bool) -> None:
        tree = self._tree_of(queue.name)
        tree.look_again = max(
            tree.look_again, LookAgain.AT_ONCE if at_once else LookAgain.AT_LEISURE
        )
        cycle.result.more |= at_once


def _leads_to(queue: LocalQueue) -> tuple[str, StopPolicy]:
    """All of a LocalQueue that concerns its pending workloads."""
    return queue.cluster_queue, queue.stop_policy


def _new_line(
    state: ClusterQueueState,
    history: UsageHistory | None,
    before: PendingQueue | None,
    unreported: list[WorkloadKey],
) -> PendingQueue:
    """A pending queue for a ClusterQueue that has none yet, or whose admission mode changed."""
    strategy = state.spec.queueing_strategy
    if history is not None:
        made: PendingQueue = FairPendingQueue(state.name, strategy, history, unreported)
    else:
        made = PendingQueue(state.name, strategy, unreported)
    for info in before.everyone() if before is not None else ():
        made.push(info, info.workload.requeue_state.requeue_at_ns or 0)
    return made
