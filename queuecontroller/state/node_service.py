"""Reports of nodes, and their effects on workloads.

Messages may arrive twice, late or out of order: a confirmation counts only for the attempt it
names, and known facts change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import FINISHED
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.state.journal import Journal
from queuecontroller.state.nodes.sessions import Held, Hello, Node, Nodes
from queuecontroller.state.records import (
    Assignment,
    Desired,
    GpuShare,
    PodKey,
    PodState,
    WorkloadRecord,
)
from queuecontroller.state.workloads.workloads import NODE_LOST, Workloads
from sluicecommon.plain import read_plain, write_plain

_LIVE: Final = {
    "running": PodState.RUNNING,
    "stopping": PodState.RUNNING,
    "paused": PodState.PAUSED,
}
_OVER: Final = frozenset({"stopped", "finished"})


@dataclass(frozen=True, slots=True)
class WorkReport:
    """A message about one pod's work."""

    node: str
    epoch: int
    workload: WorkloadKey
    pod: str
    uid: str
    attempt: int
    reason: str = ""
    started: bool = True
    """True if the work ran at some time; otherwise its waiting process still waits."""

    @property
    def key(self) -> PodKey:
        return PodKey(self.workload, self.pod)


class NodeService:
    def __init__(
        self, nodes: Nodes, workloads: Workloads, journal: Journal, requeue_lost: bool
    ) -> None:
        self._nodes = nodes
        self._workloads = workloads
        self._journal = journal
        self.requeue_lost = requeue_lost
        self._unclaimed: dict[WorkloadKey, tuple[str, int]] = {}
        """Decided workloads without a waiting process, by name: their UID, and when they are
        withdrawn."""

    # -- sessions ---------------------------------------------------------------------------------

    def connect(self, hello: Hello, now_ns: int) -> tuple[Node, list[Assignment]]:
        """Open a session; returns the node and its complete set of decisions. Raises Superseded,
        Unproven."""
        before = {one.key for one in self._nodes.of_node(hello.node)}
        node = self._nodes.connect(hello, now_ns)
        held = {one.key: one for one in hello.held}
        for one in hello.held:
            self._take_held(node, one, now_ns)
        self._note_leaving(node, hello.held)
        for key in before - held.keys():
            self._vanished(key, now_ns)
        self._withdraw_orphans(hello, now_ns)
        self._workloads.place_waiting(now_ns)
        return node, self._nodes.decisions_after(hello.node, -1)

    def _take_held(self, node: Node, held: Held, now_ns: int) -> None:
        one = self._nodes.assignments.get(held.key)
        if one is None or one.node != node.name or one.uid != held.uid:
            if one is None and held.state in (*_LIVE, "offered"):
                self._adopt(node, held, now_ns)
            return  # It is not in the response, so the node stops it.
        report = WorkReport(
            node.name,
            node.record.epoch,
            held.workload,
            held.pod,
            held.uid,
            held.attempt,
            held.reason,
            held.started,
        )
        if held.state in _LIVE:
            self._running(one, held.attempt, _LIVE[held.state], held.gpus, now_ns)
        elif held.state in _OVER:
            self._over(one, report, held.state == "finished", now_ns)
        elif held.state == "refused":
            self._refused(one, report, now_ns)

    def _note_leaving(self, node: Node, held: Iterable[Held]) -> None:
        """Record the work that the node has to stop, since it was given up while the node was
        away."""
        leaving = {}
        for work in held:
            one = self._nodes.assignments.get(work.key)
            known = one is not None and (one.node, one.uid) == (node.name, work.uid)
            if one is not None and one.state is PodState.DECIDED:
                known = known and work.attempt == one.attempt
            if work.state in _LIVE and not known:
                leaving[work.key] = (work.uid, self._own_shares(node.name, work.gpus))
        self._nodes.note_leaving(node.name, leaving)

    def _vanished(self, key: PodKey, now_ns: int) -> None:
        """Handle work that the node had confirmed and no longer has: the node was reset, or the
        report of its end is in a lost part of the database."""
        one = self._nodes.assignments.get(key)
        if one is None or (one.state is PodState.DECIDED and one.desired is Desired.RUN):
            return  # The node never received the decision, and receives it now.
        record = self._workloads.records.get(key.workload)
        self._nodes.forget(key)
        if record is None:
            return
        if record.node or record.workload.admission is None:
            self._workloads.pod_over(key.workload, False, "its node no longer has it", now_ns)
        elif self._workloads.records[key.workload].deleting:
            self._workloads.complete_eviction(key.workload, now_ns)
        else:
            message = f"node {one.node} lost its work"
            self._workloads.evict(key.workload, NODE_LOST, message, None, now_ns)

    def _adopt(self, node: Node, held: Held, now_ns: int) -> None:
        """Take over work that the database lost, from the sealed row that the node kept."""
        row = self._nodes.adoptable(node.name, held)
        if row is None:
            return
        try:
            record: WorkloadRecord = read_plain(WorkloadRecord, row.body["workload"])
            one: Assignment = read_plain(Assignment, row.body["assignment"])
        except (ValueError, TypeError, KeyError) as error:  # The row is of another version.
            self._journal.note(
                "NotAdopted", f"Workload/{held.workload}", f"from {node.name}: {error}", now_ns
            )
            return
        if (record.key, one.key, one.uid) != (held.workload, held.key, held.uid):
            return
        known = self._workloads.records.get(record.key)
        if known is not None and known.workload.uid != held.uid:
            return  # Another workload has the name by now.
        if known is None or (known.attempt <= record.attempt and known.workload.admission is None):
            if known is not None:
                self._workloads.engine.delete(record.key, now_ns)
                record = replace(record, manifest=known.manifest, token=known.token)
            self._workloads.restore(record, now_ns)
            self._journal.put_workload(record)
        elif known.workload.is_true(FINISHED):
            return
        state = _LIVE.get(held.state, PodState.DECIDED)
        gpus = one.gpus or self._own_shares(one.node, held.gpus)
        self._nodes.adopt(replace(one, state=state, gpus=gpus))
        self._journal.note("Adopted", f"Workload/{record.key}", f"from {node.name}", now_ns)

    def _withdraw_orphans(self, hello: Hello, now_ns: int) -> None:
        """Remove workloads whose waiting processes on this node have gone. One that is decided but
        has not started would hold its quota for ever, since nothing on the node is left to start
        it; it is removed after a lease, unless it starts or its process is heard of."""
        for key in list(self._workloads.by_node.get(hello.node, ())):
            if key in hello.waiting:
                self._unclaimed.pop(key, None)
            elif not self._nodes.of_workload(key):
                self._withdraw(key, hello.node, now_ns)
            elif self._is_only_decided(key):
                uid = self._workloads.records[key].workload.uid
                self._unclaimed.setdefault(key, (uid, now_ns + self._nodes.lease_ns))

    def _is_only_decided(self, key: WorkloadKey) -> bool:
        placed = self._nodes.of_workload(key).values()
        return all(one.state is PodState.DECIDED and one.desired is Desired.RUN for one in placed)

    def _withdraw(self, key: WorkloadKey, node: str, now_ns: int) -> None:
        self._workloads.remove(key, f"its waiting process on {node} is gone", now_ns)

    def _withdraw_unclaimed(self, now_ns: int) -> None:
        for key, (uid, due_ns) in list(self._unclaimed.items()):
            record = self._workloads.records.get(key)
            known = record is not None and record.workload.uid == uid
            if record is None or not known or not self._is_only_decided(key):
                del self._unclaimed[key]
            elif now_ns >= due_ns:
                del self._unclaimed[key]
                self._withdraw(key, record.node, now_ns)

    # -- reports ----------------------------------------------------------------------------------

    def report(
        self,
        node: str,
        epoch: int,
        sequence: int,
        capacity: NodeCapacity,
        now_ns: int,
        *,
        stopping: bool = False,
    ) -> Node:
        found, changed = self._nodes.report(
            node, epoch, sequence, capacity, now_ns, stopping=stopping
        )
        if changed:
            self._workloads.place_waiting(now_ns)
        return found

    # -- about one pod ----------------------------------------------------------------------------

    def confirm(
        self, report: WorkReport, state: PodState, gpus: tuple[GpuShare, ...], now_ns: int
    ) -> bool:
        """Record that a pod runs or is paused. False if the attempt is unknown. Raises
        StaleEpoch."""
        one = self._find(report)
        if one is None:
            return False
        self._running(one, report.attempt, state, gpus, now_ns)
        return True

    def refuse_resume(self, report: WorkReport, now_ns: int) -> bool:
        """Record that a paused pod could not resume, as its time share is in use. It is
        requeued."""
        one = self._find(report)
        if one is None:
            return False
        if one.desired is Desired.RUN and report.attempt == one.attempt:
            one = self._nodes.note_state(one, PodState.PAUSED, (), now_ns)
            self._workloads.refused(one.workload, one.node, report.reason, now_ns, paused=True)
        return True

    def refuse(self, report: WorkReport, now_ns: int) -> bool:
        one = self._find(report)
        if one is None:
            return False
        self._refused(one, report, now_ns)
        return True

    def release(self, report: WorkReport, finished: bool, now_ns: int) -> bool:
        """Record that the work is over on the node. False if it is unknown. Raises StaleEpoch."""
        one = self._find(report)
        self._nodes.note_left(report.node, report.key, report.uid)
        if one is None:
            self._workloads.place_waiting(now_ns)
            return False
        self._over(one, report, finished, now_ns)
        return True

    def _find(self, report: WorkReport) -> Assignment | None:
        self._nodes.session(report.node, report.epoch)
        one = self._nodes.assignments.get(report.key)
        if one is None or one.node != report.node or one.uid != report.uid:
            return None
        return one

    def _running(
        self,
        one: Assignment,
        attempt: int,
        state: PodState,
        gpus: tuple[GpuShare, ...],
        now_ns: int,
    ) -> None:
        if attempt > one.attempt or (attempt < one.attempt and one.desired is Desired.RUN):
            return  # The report is about another admission.
        one = self._nodes.note_state(one, state, self._own_shares(one.node, gpus), now_ns)
        self._workloads.mark_ready(one.workload, now_ns)
        if state is PodState.PAUSED:
            self._workloads.complete_eviction(one.workload, now_ns)
            self._workloads.place_waiting(now_ns)

    def _own_shares(self, node: str, gpus: tuple[GpuShare, ...]) -> tuple[GpuShare, ...]:
        """The shares that the node reports, if they are on its own GPUs and distinct; empty
        otherwise."""
        reported = {gpu.uuid: gpu for gpu in self._nodes.nodes[node].capacity.gpus}
        for share in gpus:
            gpu = reported.get(share.uuid)
            if gpu is None or share.memory_bytes > gpu.memory_bytes:
                return ()
        return gpus if len({(s.uuid, s.mig_start) for s in gpus}) == len(gpus) else ()

    def _refused(self, one: Assignment, report: WorkReport, now_ns: int) -> None:
        if report.attempt != one.attempt:
            return
        self._nodes.forget(one.key)
        self._workloads.refused(one.workload, one.node, report.reason, now_ns)
        self._workloads.place_waiting(now_ns)

    def _over(self, one: Assignment, report: WorkReport, finished: bool, now_ns: int) -> None:
        if report.attempt != one.attempt and one.state is PodState.DECIDED:
            return  # An earlier attempt is over; this one has not started.
        self._nodes.forget(one.key)
        if report.started:
            self._workloads.pod_over(one.workload, finished, report.reason, now_ns)
        else:
            self._workloads.never_started(one.workload, one.node, report.reason, now_ns)
        self._workloads.place_waiting(now_ns)

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        self._withdraw_unclaimed(now_ns)
        for node in self._nodes.expire(now_ns):
            if not self.requeue_lost:
                continue
            for one in list(self._nodes.of_node(node.name)):
                # The node has paused the work by now: its lease ends before the controller's.
                self._nodes.forget(one.key)
                message = f"node {node.name} is lost"
                if self._workloads.records[one.workload].node:
                    self._workloads.pod_over(one.workload, False, message, now_ns)
                else:
                    self._workloads.evict(one.workload, NODE_LOST, message, None, now_ns)

    def row_of(self, one: Assignment) -> str:
        """The sealed row that the node keeps for a controller with a lost database. It excludes the
        user's texts: manifests have environments with secrets, command lines may have them, and the
        token belongs to the submitter."""
        record = self._workloads.records.get(one.workload)
        if record is None:
            return ""
        bare = replace(record, manifest="", command="", token="")
        row = {"workload": write_plain(bare), "assignment": write_plain(one)}
        return self._nodes.seal_row(one, row)
