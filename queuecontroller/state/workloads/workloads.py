"""Life cycle of workloads: submitted, quota reserved, admitted with a placement, running, evicted,
finished.

Quota comes first, then the admission checks, then a placement; only then is a node notified. An
evicted workload keeps its quota until each of its nodes has reported that the work stopped, so
nothing is allocated twice. Every change goes through `_save`, which writes it to the journal.

The file is long because it is one state machine: submission, start and end change the same records,
and separate parts would have to trust each other with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

from queuecontroller.gpushares.extender.pods import nodes_of
from queuecontroller.scheduler.lifecycle import (
    Eviction,
    PodsReadySettings,
    backoff_ns,
    due_at_ns,
    due_eviction,
)
from queuecontroller.scheduler.model.checkpointed import kept_for
from queuecontroller.scheduler.model.decisions import (
    CycleResult,
    Preempted,
    QuotaReserved,
    StillPending,
)
from queuecontroller.scheduler.model.objects import (
    Admission,
    AdmissionCheckStatus,
    CheckState,
    RequeueState,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    CHECKPOINT_REQUESTED,
    EVICTED,
    FINISHED,
    NODE_REFUSED,
    PODS_READY,
    PREEMPTION_WORDS,
    RESTORING,
    STARTED,
    STOPPED,
    WAIT_FOR_SCHEDULING,
    WAIT_FOR_START,
    EvictionReason,
    PendingReason,
    PreemptionReason,
)
from queuecontroller.scheduler.placement.choose import Chosen
from queuecontroller.scheduler.scheduler import Scheduler
from queuecontroller.state.figures import Figures
from queuecontroller.state.journal import Journal
from queuecontroller.state.nodes.nodes_room import NodesRoom, gpu_shares
from queuecontroller.state.nodes.sessions import Nodes, rests
from queuecontroller.state.objects.catalogue import Catalogue
from queuecontroller.state.records import (
    Assignment,
    Desired,
    OnPreemption,
    PodState,
    WorkloadRecord,
)
from queuecontroller.state.workloads import conditions
from queuecontroller.state.workloads.counting import Counting
from queuecontroller.state.workloads.elsewhere import Checkpoints, RunningElsewhere

NODE_LOST: Final = "NodeLost"
_PENDING: Final = CheckState.PENDING
_MAKING_WAY: Final = {
    OnPreemption.STOP: Desired.STOP,
    OnPreemption.PAUSE: Desired.PAUSE,
    OnPreemption.CHECKPOINT: Desired.CHECKPOINT,
}
MAX_TURNS: Final = 3
"""Mutual preemptions of two workloads before an event is recorded. The scheduler protects a
workload after three, so more than six would be a defect."""
STOPPED_ELSEWHERE: Final = "Its pods were stopped before they were checkpointed"
UNKNOWN: Final = "UNKNOWN"
"""Kueue's word for a UID that is not known."""
BACKOFF: Final = PodsReadySettings(backoff_base_s=2, backoff_max_s=300)
"""Back-off after a refusal by a node, whose GPUs may be free again soon."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a workload has not started, as last evaluated."""

    reason: str
    message: str
    preempting: tuple[WorkloadKey, ...] = ()


class Workloads:
    def __init__(
        self,
        journal: Journal,
        catalogue: Catalogue,
        engine: Scheduler,
        nodes: Nodes,
        room: NodesRoom | None,
        pods_ready: PodsReadySettings,
        grace_s: float,
        preempted_rests_ns: int = 0,
        follow: Callable[[int], None] | None = None,
        note_move: Callable[[WorkloadRecord], None] = lambda _: None,
    ) -> None:
        """Without a room, quota alone decides, and Kubernetes places pods. `follow` takes in the
        nodes' current state; it is called before each cycle. `note_move` is called with each
        workload that is restored or moved, see `NodesRoom.note_move`."""
        self._journal = journal
        self._catalogue = catalogue
        self.engine = engine
        self._nodes = nodes
        self._room = room
        self._follow = follow
        self._note_move = note_move
        self._pods_ready = pods_ready
        self.grace_s = grace_s
        self._preempted_rests_ns = preempted_rests_ns
        self.records: dict[WorkloadKey, WorkloadRecord] = {}
        self.by_user: Counter[str] = Counter()
        """Number of workloads by user."""
        self.by_node: dict[str, dict[WorkloadKey, None]] = {}
        """Unfinished workloads by the node of their process."""
        self.finished: dict[WorkloadKey, int] = {}
        """Time of finishing, ns; the oldest first."""
        self.waiting: dict[WorkloadKey, Waiting] = {}
        self.figures = Figures()
        self.counting = Counting(self.figures)
        self._elsewhere: RunningElsewhere | None = None
        """Runner of workloads outside of the nodes; None if there is none."""
        self.checkpoints: Checkpoints | None = None
        """Which of those may be checkpointed instead of stopped; None: none may be."""
        self.preemptor_of: dict[WorkloadKey, WorkloadKey] = {}
        """Last preemptor by victim, until the victim is deleted or gets quota again."""
        self._unplaced: dict[WorkloadKey, None] = {}
        """Workloads with quota and without a placement, oldest first."""
        self._timed: set[WorkloadKey] = set()
        """Workloads that may have to be evicted as time passes."""

    def run_elsewhere(self, elsewhere: RunningElsewhere) -> None:
        """Connect what runs workloads besides the nodes. A workload's quota is then kept until that
        has stopped it, and the admission checks of an evicted workload start again."""
        self._elsewhere = elsewhere
        self.counting.evicted_before = elsewhere.evicted_before

    @property
    def unplaced(self) -> int:
        """Number of workloads with quota that no node can take at present."""
        return len(self._unplaced)

    # -- submission and removal -------------------------------------------------------------------

    def restore(self, record: WorkloadRecord, now_ns: int) -> None:
        self.by_user[record.user] += record.key not in self.records
        self.records[record.key] = record
        self._track(record)
        self.engine.submit(record.workload, now_ns)
        self._note_move(record)
        workload = record.workload
        over = (ADMITTED, EVICTED, FINISHED)
        if workload.admission is not None and not any(workload.is_true(kind) for kind in over):
            self._unplaced[record.key] = None

    def forget(self, key: WorkloadKey, now_ns: int) -> None:
        """Drop a workload without recording it, before it is restored from another source."""
        record = self.records.pop(key)
        self.finished.pop(key, None)
        self.preemptor_of.pop(key, None)
        self.counting.forget(key)
        self.by_user[record.user] -= 1
        self._leave_node(record)
        self.waiting.pop(key, None)
        self._unplaced.pop(key, None)
        self._timed.discard(key)
        self.engine.delete(key, now_ns)

    def resume(self, now_ns: int) -> None:
        """Resume pending steps once all workloads are restored."""
        self.finished = dict(sorted(self.finished.items(), key=itemgetter(1)))
        for key, record in list(self.records.items()):
            workload = record.workload
            holds = workload.admission is not None and not workload.is_true(FINISHED)
            if holds and workload.is_true(EVICTED) and not self._nodes.of_workload(key):
                self.complete_eviction(key, now_ns)
        self.require_checks(self.records, now_ns)

    def submit(self, record: WorkloadRecord, now_ns: int, workload: Workload) -> WorkloadRecord:
        """Store a new record with this workload."""
        self.by_user[record.user] += 1
        record = self._save(record, now_ns, workload=workload)
        self.engine.submit(record.workload, now_ns)
        return record

    def remove(self, key: WorkloadKey, reason: str, now_ns: int) -> None:
        """Delete a workload; its work is stopped first."""
        record = self.records[key]
        if self._nodes.of_workload(key):
            if not record.deleting:
                record = self._save(record, now_ns, deleting=True)
            if record.workload.admission is not None:
                self.evict(key, "Deleted", reason, None, now_ns, Desired.STOP)
            else:  # It is paused and queued again.
                self._tell(key, Desired.STOP, reason, now_ns)
                self.engine.delete(key, now_ns)
            return
        self._journal.note("Deleted", _subject(key), reason, now_ns)
        self._drop(key, now_ns)

    def _drop(self, key: WorkloadKey, now_ns: int) -> None:
        self.forget(key, now_ns)
        self._journal.drop_workload(key)

    def finish(self, key: WorkloadKey, reason: str, message: str, now_ns: int) -> None:
        record = self.records[key]
        workload = record.workload
        if workload.is_true(FINISHED):
            return
        self.counting.finished(workload, now_ns)
        workload = conditions.finished(workload, reason, message, now_ns)
        self._save(record, now_ns, workload=workload)
        self.engine.delete(key, now_ns)
        self.waiting.pop(key, None)
        self._unplaced.pop(key, None)
        self._journal.note("Finished", _subject(key), message or reason, now_ns)
        if record.deleting:
            self._drop(key, now_ns)

    def _save(self, record: WorkloadRecord, now_ns: int, **changes: Any) -> WorkloadRecord:
        """Store a record; `changes` are set in the same copy as its new revision, to save time."""
        record = replace(record, revision=self._journal.next_revision(), **changes)
        self.records[record.key] = record
        self._journal.put_workload(record)
        holding = self.engine.holding(record.key)
        if holding is not None:
            holding.workload = record.workload
        self._track(record)
        return record

    def _leave_node(self, record: WorkloadRecord) -> None:
        mine = self.by_node.get(record.node)
        if mine is not None:
            mine.pop(record.key, None)
            if not mine:
                del self.by_node[record.node]

    def _track(self, record: WorkloadRecord) -> None:
        workload = record.workload
        over = workload.condition(FINISHED)
        if over is not None and over.status:
            self.finished.setdefault(record.key, over.changed_ns)
            self._leave_node(record)
            self._timed.discard(record.key)
            return
        if record.node:
            self.by_node.setdefault(record.node, {})[record.key] = None
        if workload.admission is not None and due_at_ns(workload, self._pods_ready) is not None:
            self._timed.add(record.key)
        else:
            self._timed.discard(record.key)

    # -- the cycle --------------------------------------------------------------------------------

    def cycle(self, now_ns: int) -> CycleResult:
        if self._follow is not None:
            self._follow(now_ns)
        result = self.engine.cycle(now_ns)
        for replaced in result.replaced:
            if (mine := kept_for(replaced.key)) is not None:
                self.engine.drop_keeper(mine, now_ns)
                continue
            self.figures.replaced.add(replaced.cluster_queue)
            self.finish(replaced.key, "WorkloadSliceReplaced", "a larger slice took over", now_ns)
        for preempted in result.preempted:
            self._preempt(preempted, now_ns)
        for decision in result.reserved:
            self._reserve(decision, now_ns)
        for pending in result.pending:
            self._wait(pending, now_ns)
        for key in result.unreported:
            if key not in self.waiting:
                self._journal.touch_workload(key)
        if result.heads:
            self.figures.attempts[attempt_of(result)] += 1
            self.figures.skips = result.skipped_preemptions
            for queue, outcome in result.recomputed:
                self.figures.recomputed.add(queue, outcome)
        return result

    def _wait(self, pending: StillPending, now_ns: int) -> None:
        key = pending.info.key
        if self._room is not None:
            for paused in pending.frees:
                self._room.stop_paused(paused, key, now_ns)
        waiting = Waiting(str(pending.reason), pending.message, pending.preempting)
        if self.waiting.get(key) != waiting:
            self.waiting[key] = waiting
            self._journal.touch_workload(key)

    def why_not(self, key: WorkloadKey) -> Waiting | None:
        """Reason why a workload is pending, evaluated for it or for another of its shape; None if
        it was not evaluated yet."""
        found = self.waiting.get(key)
        if found is None and (why := self.engine.why_like_others(key)) is not None:
            return Waiting(*why)
        return found

    def _reserve(self, decision: QuotaReserved, now_ns: int) -> None:
        key = decision.info.key
        record = self.records[key]
        queue = decision.info.cluster_queue
        admission, before = decision.admission(), record.workload
        workload = conditions.reserved(
            before,
            queue,
            now_ns,
            admission=admission,
            admission_checks=self._checks(before, admission),
        )
        self.waiting.pop(key, None)
        self._save(record, now_ns, workload=workload, attempt=record.attempt + 1)
        self.engine.drop_keeper(key, now_ns)  # Even if it was kept in another ClusterQueue.
        self._journal.note("QuotaReserved", _subject(key), f"in ClusterQueue {queue}", now_ns)
        self.preemptor_of.pop(key, None)
        self.counting.reserved(before, queue, now_ns)
        self.advance(key, now_ns)

    def _checks(self, workload: Workload, admission: Admission) -> tuple[AdmissionCheckStatus, ...]:
        """The checks that its queue requires for these flavors, pending unless known."""
        queue = self._catalogue.cluster_queue(admission.cluster_queue)
        if queue is None:
            return workload.admission_checks
        given = {f for one in admission.pod_sets for f in one.flavors.values()}
        known = {one.name: one for one in workload.admission_checks}
        return tuple(
            known.get(rule.name, AdmissionCheckStatus(rule.name, CheckState.PENDING))
            for rule in queue.admission_checks
            if not rule.on_flavors or given.intersection(rule.on_flavors)
        )

    # -- from reserved to admitted ----------------------------------------------------------------

    def advance(self, key: WorkloadKey, now_ns: int) -> bool:
        """Admit a workload with quota once its checks are ready and it has a placement; True if it
        was admitted."""
        record = self.records[key]
        workload = record.workload
        if workload.admission is None or workload.is_true(EVICTED) or workload.is_true(ADMITTED):
            self._unplaced.pop(key, None)
            return False
        late = [one.name for one in workload.admission_checks if one.state is not CheckState.READY]
        if late:
            self._hold_up(key, "AdmissionCheck", f"waits for {', '.join(late)}")
            return False
        placed = self._room.place(record, now_ns) if self._room is not None else []
        if isinstance(placed, str):
            self._unplaced[key] = None
            self._hold_up(key, str(PendingReason.WAITING_FOR_PLACEMENT), placed)
            return False
        self._unplaced.pop(key, None)
        self.waiting.pop(key, None)
        given = workload.admission
        queue = given.cluster_queue
        workload = conditions.admitted(workload, now_ns)
        if self._elsewhere is not None and self._pods_ready.of(workload)[0] is not None:
            follows = self._pods_ready.unscheduled_timeout_s is not None
            workload = conditions.awaiting_pods(workload, False if follows else None, now_ns)
        self._save(record, now_ns, workload=workload)
        self.engine.admitted(key, now_ns)
        nodes = {one.node for one in placed} | nodes_of(given)
        where = f"; {', '.join(sorted(nodes))}" if nodes else ""
        self._journal.note("Admitted", _subject(key), f"by {queue}{where}", now_ns)
        for one in placed:
            self._decide_run(self.records[key], one, now_ns)
        state = self.engine.cache.queues.get(queue)
        above = [one.name for one in state.node.path[1:]] if state is not None else []
        self.counting.admitted(workload, queue, above, now_ns)
        return True

    def _hold_up(self, key: WorkloadKey, reason: str, message: str) -> None:
        waiting = Waiting(reason, message)
        if self.waiting.get(key) != waiting:
            self.waiting[key] = waiting
            self._journal.touch_workload(key)

    def _decide_run(self, record: WorkloadRecord, placed: Chosen, now_ns: int) -> None:
        assert record.workload.admission is not None
        pod_set = placed.pod.rpartition("-")[0] or next(iter(record.asks))
        before = self._nodes.of_workload(record.key).get(placed.pod)
        self._nodes.decide(
            Assignment(
                workload=record.key,
                pod=placed.pod,
                uid=record.workload.uid,
                attempt=record.attempt,
                node=placed.node,
                epoch=self._nodes.nodes[placed.node].record.epoch,
                revision=0,
                desired=Desired.RUN,
                ask=record.asks[pod_set],
                gpus=gpu_shares(placed, record.asks[pod_set].share_ppm),
                state=before.state if before is not None else PodState.DECIDED,
                reason="admitted",
                cluster_queue=record.workload.admission.cluster_queue,
                priority=record.workload.priority,
            ),
            now_ns,
        )

    def place_waiting(self, now_ns: int) -> None:
        """Retry all workloads without a placement after something was freed or reported."""
        for key in list(self._unplaced):
            self.advance(key, now_ns)

    # -- leaving ----------------------------------------------------------------------------------

    def _preempt(self, decision: Preempted, now_ns: int) -> None:
        preemptor = decision.preemptor
        here, there = map(self._path, (preemptor.cluster_queue, decision.target.cluster_queue))
        message = (
            f"Preempted to accommodate a workload (UID: {preemptor.uid or UNKNOWN}, JobUID:"
            f" {preemptor.workload.owner_uid or UNKNOWN}) due to"
            f" {PREEMPTION_WORDS[decision.reason]}; preemptor path: {here}; preemptee path: {there}"
        )
        if self._elsewhere is None:  # Kueue's message does not name the workload.
            message += f"; preemptor: {preemptor.key}"
        self.figures.preempted[preemptor.cluster_queue, str(decision.reason)] += 1
        key = decision.target.key
        if (kept := kept_for(key)) is not None:
            self.preemptor_of[kept] = preemptor.key
            self.give_up_checkpoint(kept, f"{message}, which needs more than its GPUs", now_ns)
            return
        self.preemptor_of[key] = preemptor.key
        record = self.records[key]
        turns = self.engine.preemption_turns(key, preemptor.key)
        if turns > MAX_TURNS:
            self.figures.preemption_turns[preemptor.cluster_queue] += 1
            text = (
                f"preempted for {preemptor.key}: the two have preempted each other {turns} times;"
                " their ClusterQueues' preemption policies let each take from the other"
            )
            self._journal.note("PreemptedInTurns", _subject(key), text, now_ns)
        desired = self._makes_way(record, decision.target.cluster_queue)
        reason = str(EvictionReason.PREEMPTED)
        rest, checkpoints = None, False
        if decision.reason is not PreemptionReason.CONSOLIDATION and self.checkpoints is not None:
            why_not = self.checkpoints.why_not(record)
            checkpoints = why_not == ""
            if why_not:
                message += f"; its pods are stopped, not checkpointed: {why_not}"
            elif checkpoints:
                message += "; its pods are checkpointed"
        if decision.reason is PreemptionReason.CONSOLIDATION:  # It has room elsewhere, at once.
            record = self._save(record, now_ns, moved_ns=now_ns)
            self._note_move(record)
        elif self._preempted_rests_ns:
            again_ns = now_ns + self._preempted_rests_ns
            rest = replace(record.workload.requeue_state, requeue_at_ns=again_ns)
        for_what = str(decision.reason)
        self.evict(key, reason, message, for_what, now_ns, desired, rest, checkpoints=checkpoints)

    def _path(self, cluster_queue: str) -> str:
        """The path of a ClusterQueue from the root of its cohorts, as Kueue writes it."""
        state = self.engine.cache.queues.get(cluster_queue)
        above = state.node.path[1:] if state is not None else ()
        return "/" + "/".join((*(one.name for one in reversed(above)), cluster_queue))

    def _makes_way(self, record: WorkloadRecord, cluster_queue: str) -> Desired:
        """The state for a preempted workload's processes."""
        return _MAKING_WAY[record.on_preemption or self._catalogue.on_preemption(cluster_queue)]

    def evict(
        self,
        key: WorkloadKey,
        reason: str,
        message: str,
        preempted_for: str | None,
        now_ns: int,
        desired: Desired = Desired.STOP,
        requeue: RequeueState | None = None,
        deactivates: bool = False,
        cause: str = "",
        checkpoints: bool = False,
    ) -> None:
        """Evict a workload; its quota is released once none of its pods runs any more.

        `reason` and `message` are those of its condition Evicted; `preempted_for` is the reason of
        Preempted, None if it is not preempted. `desired` decides if its processes are stopped or
        paused. `requeue` is its new back-off; None keeps the old one. `deactivates` excludes it
        from the queue until it is activated. `cause` refines `reason`. With `checkpoints` its pods
        are checkpointed outside of the nodes' sessions, and it keeps its quota until they are. A
        workload without quota is unchanged; nodes of an evicted one are notified again.
        """
        record = self.records[key]
        workload = record.workload
        if workload.admission is None:
            return
        if not workload.is_true(EVICTED):
            queue = workload.admission.cluster_queue
            self.counting.evicted(workload, queue, reason, cause, now_ns)
            workload = conditions.evicting(
                workload, reason, message, preempted_for, now_ns, cause, checkpoints
            )
            if requeue is not None:
                workload = replace(workload, requeue_state=requeue)
            if deactivates:
                workload = replace(workload, active=False)
            self._save(record, now_ns, workload=workload)
            self._journal.note("Evicted", _subject(key), f"{reason}: {message}", now_ns)
            holding = self.engine.holding(key)
            if holding is not None and not holding.evicted:
                self.engine.cache.mark_evicted(holding)
        self._unplaced.pop(key, None)
        self._tell(key, desired, message, now_ns)
        self.complete_eviction(key, now_ns)

    def _tell(self, key: WorkloadKey, desired: Desired, reason: str, now_ns: int) -> None:
        for one in list(self._nodes.of_workload(key).values()):
            self._nodes.tell(one, desired, reason, now_ns)

    def complete_eviction(self, key: WorkloadKey, now_ns: int) -> None:
        """Release the quota once none of the workload's pods runs any more."""
        record = self.records.get(key)
        if record is None or not record.workload.is_true(EVICTED):
            return
        if record.workload.admission is None:
            if record.deleting and not self._nodes.of_workload(key):
                self.remove(key, "deleted", now_ns)
            elif record.workload.is_given_up and not self._runs_elsewhere(key):
                workload = replace(record.workload, checkpointed=None)
                self.engine.submit(self._save(record, now_ns, workload=workload).workload, now_ns)
            return
        if any(not rests(one) for one in self._nodes.of_workload(key).values()):
            return
        if self._runs_elsewhere(key):
            return
        self.engine.release(key, now_ns)
        self.counting.stopped(record.workload, now_ns)
        evicted = record.workload.condition(EVICTED)
        assert evicted is not None
        workload = conditions.not_checkpointed(record.workload, STOPPED_ELSEWHERE, now_ns)
        workload = conditions.back_in_line(workload, evicted.reason, evicted.message, now_ns)
        if self._elsewhere is not None:  # in Kueue a check's state counts for one admission only
            asked = (AdmissionCheckStatus(one.name, _PENDING) for one in workload.admission_checks)
            workload = replace(workload, admission_checks=tuple(asked))
        if record.deleting:
            self.remove(key, "deleted", now_ns)
            return
        record = self._save(record, now_ns, workload=workload)
        self.engine.submit(record.workload, now_ns)

    def _runs_elsewhere(self, key: WorkloadKey) -> bool:
        return self._elsewhere is not None and self._elsewhere.runs(key)

    # -- checkpoints outside of the nodes' sessions -----------------------------------------------

    def note_saved(self, key: WorkloadKey, kept: Admission, now_ns: int) -> None:
        """Requeue a preempted workload all of whose pods are checkpointed: of its quota it keeps
        `kept`, and its GPUs are free."""
        record = self.records.get(key)
        if record is None or record.workload.admission is None or record.deleting:
            return
        workload = record.workload
        if not workload.is_true(EVICTED) or workload.checkpoint_phase != CHECKPOINT_REQUESTED:
            return
        self.engine.release(key, now_ns)
        self.counting.stopped(workload, now_ns)
        workload = conditions.saved(workload, kept, now_ns)
        self._journal.note("Checkpointed", _subject(key), conditions.SAVED, now_ns)
        self.engine.submit(self._save(record, now_ns, workload=workload).workload, now_ns)

    def note_restored(self, key: WorkloadKey, now_ns: int) -> None:
        """Record that all pods of a workload have their GPU memory again."""
        record = self.records.get(key)
        if record is not None and record.workload.checkpoint_phase == RESTORING:
            self._save(record, now_ns, workload=conditions.restored(record.workload, now_ns))

    def give_up_checkpoint(self, key: WorkloadKey, message: str, now_ns: int) -> None:
        """Have the pods of a workload stopped whose checkpoint failed or is of no use any more. It
        keeps what it has until they have stopped."""
        record = self.records.get(key)
        if record is None or record.workload.is_true(FINISHED):
            return
        workload = record.workload
        if workload.checkpoint_phase == RESTORING and not workload.is_true(EVICTED):
            self.evict(key, NODE_REFUSED, message, None, now_ns)
            return
        changed = conditions.not_checkpointed(workload, message, now_ns)
        if changed is workload:
            return
        self._journal.note("NotCheckpointed", _subject(key), message, now_ns)
        record = self._save(record, now_ns, workload=changed)
        if changed.admission is None:
            self.engine.submit(changed, now_ns)
        self.complete_eviction(key, now_ns)

    def put_on_hold(self, key: WorkloadKey, message: str, now_ns: int) -> None:
        """Release the quota of a workload whose pods are gone and are not wanted for now, or have
        to be replaced first."""
        self.complete_eviction(key, now_ns)
        record = self.records.get(key)
        if record is None or record.workload.is_on_hold or record.workload.is_true(FINISHED):
            return
        if self._nodes.of_workload(key):
            return  # A node has not released its pods yet.
        if record.workload.admission is not None and record.workload.is_true(EVICTED):
            return  # One of its pods still runs.
        if record.workload.admission is not None:
            self.engine.release(key, now_ns)
            self.counting.stopped(record.workload, now_ns)
        self.waiting.pop(key, None)
        self._unplaced.pop(key, None)
        workload = conditions.on_hold(record.workload, message, now_ns)
        self.engine.submit(self._save(record, now_ns, workload=workload).workload, now_ns)

    def take_off_hold(self, key: WorkloadKey, now_ns: int) -> None:
        """Queue a workload again that was on hold."""
        record = self.records.get(key)
        if record is None or not record.workload.is_on_hold:
            return
        workload = conditions.off_hold(record.workload, now_ns)
        self.engine.submit(self._save(record, now_ns, workload=workload).workload, now_ns)

    def pod_over(self, key: WorkloadKey, finished: bool, message: str, now_ns: int) -> None:
        """Handle the end of a pod's work on its node; its assignment is deleted already."""
        record = self.records.get(key)
        if record is None:
            return
        left = self._nodes.of_workload(key)
        workload = record.workload
        if workload.is_true(EVICTED) or record.deleting:
            if finished and not left and not record.deleting:
                # It finished before it was stopped.
                self.finish(key, "JobFinished", message, now_ns)
            elif record.node and not left and workload.admission is None:
                # Its process exited while it was paused and queued again.
                self.finish(key, STOPPED, message, now_ns)
            elif record.node and not left and not record.deleting:
                self.complete_eviction(key, now_ns)
                self.finish(key, STOPPED, message, now_ns)  # Its only process was killed.
            else:
                self.complete_eviction(key, now_ns)
        elif not left:
            self.finish(key, "JobFinished" if finished else STOPPED, message, now_ns)

    def never_started(self, key: WorkloadKey, node: str, message: str, now_ns: int) -> None:
        """Handle a node's refusal of a pod before it started: its process keeps waiting."""
        record = self.records.get(key)
        if record is None:
            return
        if record.workload.is_true(EVICTED) or record.deleting:
            self.complete_eviction(key, now_ns)
        else:
            self.evict(key, NODE_REFUSED, f"{node}: {message}", None, now_ns)

    def refused(
        self,
        key: WorkloadKey,
        node: str,
        message: str,
        now_ns: int,
        paused: bool = False,
    ) -> None:
        """Handle a node's failure to start or resume a pod: the workload is stopped, or stays
        paused, everywhere, and is requeued."""
        record, desired = self.records[key], Desired.STOP
        if paused:
            admission = record.workload.admission
            desired = self._makes_way(record, admission.cluster_queue if admission else "")
            desired = Desired.PAUSE if desired is Desired.STOP else desired
        if not record.node and self._room is not None:
            self._room.avoid(key, node, now_ns)
        attempt = record.workload.requeue_state.count + 1
        again = RequeueState(attempt, now_ns + backoff_ns(attempt, key, BACKOFF))
        self.evict(key, NODE_REFUSED, f"{node}: {message}", None, now_ns, desired, again)

    # -- time and changes -------------------------------------------------------------------------

    def look(self, keys: Iterable[WorkloadKey], now_ns: int) -> None:
        """Evict workloads that are due, on their own account or their queues'."""
        for key in list(keys):
            record = self.records.get(key)
            if record is None or record.workload.admission is None:
                continue
            workload = record.workload
            if workload.is_true(EVICTED) or workload.is_true(FINISHED):
                continue
            assert workload.admission is not None
            due = due_eviction(
                workload,
                now_ns,
                self._pods_ready,
                self._catalogue.cluster_queue(workload.admission.cluster_queue),
                self._catalogue.local_queue(workload.namespace, workload.queue_name),
            )
            if due is not None:
                self._evict_due(key, due, now_ns)

    def _evict_due(self, key: WorkloadKey, due: Eviction, now_ns: int) -> None:
        self.evict(
            key,
            str(due.reason),
            due.message,
            None,
            now_ns,
            requeue=due.requeue,
            deactivates=due.deactivates,
            cause=due.cause,
        )

    def require_checks(self, keys: Iterable[WorkloadKey], now_ns: int) -> None:
        """Add checks that a ClusterQueue requires by now to workloads with quota that are not
        admitted yet, and drop those that it does not require any more."""
        for key in list(keys):
            workload = self.records[key].workload
            done = any(workload.is_true(one) for one in (ADMITTED, EVICTED, FINISHED))
            if workload.admission is None or done:
                continue
            checks = self._checks(workload, workload.admission)
            if checks != workload.admission_checks:
                self.change(key, replace(workload, admission_checks=checks), now_ns)

    def tick(self, now_ns: int) -> None:
        self.look(self._timed, now_ns)
        if self._room is not None and self._room.expire_avoidance(now_ns):
            self.place_waiting(now_ns)

    def change(self, key: WorkloadKey, workload: Workload, now_ns: int) -> WorkloadRecord:
        """Store a changed workload and apply the consequences."""
        before = self.records[key].workload
        self.counting.changed(before, workload, now_ns)
        record = self._save(self.records[key], now_ns, workload=workload)
        if workload.admission is None:
            self.engine.submit(workload, now_ns)
        else:
            holds = workload.reclaimable_pods, workload.admission, workload.priority
            if holds != (before.reclaimable_pods, before.admission, before.priority):
                self.engine.submit(workload, now_ns)  # Its usage or its rank has changed.
            self.look([key], now_ns)
            self.advance(key, now_ns)
        return record

    def set_bound(self, key: WorkloadKey, all_bound: bool, now_ns: int) -> None:
        """Note whether all pods of a workload that has not started yet are on nodes."""
        record = self.records.get(key)
        ready = record.workload.condition(PODS_READY) if record is not None else None
        if record is None or ready is None or ready.status:
            return
        wanted = WAIT_FOR_START if all_bound else WAIT_FOR_SCHEDULING
        if ready.reason == wanted or ready.reason not in (WAIT_FOR_START, WAIT_FOR_SCHEDULING):
            return
        if record.workload.is_true(ADMITTED) and not record.workload.is_true(EVICTED):
            workload = conditions.awaiting_pods(record.workload, all_bound, now_ns)
            self.change(key, workload, now_ns)

    def mark_ready(self, key: WorkloadKey, now_ns: int) -> None:
        """Set PodsReady once every pod runs."""
        record = self.records[key]
        pods = self._nodes.of_workload(key).values()
        workload = record.workload
        if workload.is_true(PODS_READY) or workload.admission is None:
            return
        if all(one.state is PodState.RUNNING for one in pods):
            text, before = "All pods are running", workload
            workload = conditions.with_condition(workload, PODS_READY, True, STARTED, text, now_ns)
            self.counting.changed(before, workload, now_ns)
            self._save(record, now_ns, workload=workload)


def attempt_of(result: CycleResult) -> str:
    """The cycle's result in Kueue's word."""
    return "success" if result.reserved or result.preempted else "inadmissible"


def _subject(key: WorkloadKey) -> str:
    return f"Workload/{key}"
