"""Checkpoints of queued pods that Kubernetes runs: which preempted workloads are checkpointed and
not stopped, and the next step of each.

Everything is in the API server's objects and in the nodes' reports, so a new leader continues: the
Workload's conditions have the step, the pod's annotation what it is told, and its node's report
what has become of that. A step is taken by what is stored, never by what is about to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.scheduler.model.checkpointed import without_gpus
from queuecontroller.scheduler.model.objects import Admission, StopPolicy, WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    CHECKPOINT_REQUESTED,
    CHECKPOINTED,
    EVICTED,
    FINISHED,
    RESTORING,
)
from queuecontroller.scheduler.placement.capacity import Checkpoint, CheckpointState
from queuecontroller.state.nodes.nodes_room import NodesRoom
from queuecontroller.state.objects.catalogue import Catalogue
from queuecontroller.state.records import OnPreemption, WorkloadRecord
from sluicecommon.hami.names import ResourceNames

ANSWERED_S: Final = 600.0
"""Seconds for a node's answer: the agent gives the processes of a grant 300 s in either direction
by default (`checkpoint.total_timeout_s`), and takes one grant at a time."""
AWAY_S: Final = 300.0
"""Seconds without a report of the node, after which what is checkpointed there is given up."""


class Permissions(Protocol):
    """Facts about a workload from the API server's objects."""

    def is_restarted(self, key: WorkloadKey) -> bool:
        """True if its job makes its pod again after an eviction."""

    def on_preemption(self, key: WorkloadKey) -> OnPreemption | None:
        """The annotation of the Workload, its job or its pods; None: they have none."""

    def other_devices(self, key: WorkloadKey, names: ResourceNames) -> str:
        """A device that its pods request beside GPU shares; empty if there is none."""


class PodCheckpoints:
    """Implements `state.workloads.elsewhere.Checkpoints`."""

    def __init__(
        self,
        room: NodesRoom,
        catalogue: Catalogue,
        permissions: Permissions,
        names: ResourceNames,
    ) -> None:
        self._room = room
        self._catalogue = catalogue
        self._permissions = permissions
        self._names = names

    def why_not(self, record: WorkloadRecord) -> str | None:
        admission = record.workload.admission
        if admission is None:
            return None
        wanted = self._permissions.on_preemption(record.key)
        if (wanted or self._catalogue.on_preemption(admission.cluster_queue)) is (
            OnPreemption.CHECKPOINT
        ):
            return self._obstacle(record, admission)
        return None

    def _obstacle(self, record: WorkloadRecord, admission: Admission) -> str:
        key, workload = record.key, record.workload
        if not workload.is_true(ADMITTED):
            return "it has not started"
        if not self._permissions.is_restarted(key):
            return "only a job that is suspended and resumed can be"
        counts = [one.count for one in workload.pod_sets], [one.count for one in admission.pod_sets]
        if counts != ([1], [1]):
            return "only a job of one pod can be"
        [pod_set] = workload.pod_sets
        if workload.admission_checks or workload.replaces is not None:
            return "it has admission checks, or is elastic"
        if pod_set.device_requests or pod_set.spreading is not None:
            return "it has claims, or is spread with others"
        if other := self._permissions.other_devices(key, self._names):
            return f"its pod requests {other} beside GPU shares"
        ledger = self._room.pods
        slots, pods = ledger.reserved.slots(key), ledger.of_workload(key)
        if len(slots) != 1 or len(pods) != 1 or slots[0].pod != pods[0].uid:
            return "its pod is not bound to GPUs that this queue chose"
        if pods[0].leaving or not ledger.reported(pods[0].uid):
            return "its pod ends, or its node has not reported yet that it runs"
        node = self._room.stock.nodes.get(pods[0].node)
        for share in slots[0].place.held:
            gpu = node.gpus.get(share.uuid) if node is not None else None
            if gpu is None:
                return f"node {pods[0].node} does not report its GPUs"
            if gpu.slots < 1:
                return "no slot of its GPU is free, and a checkpointed pod keeps its own"
        return ""

    def kept(self, admission: Admission) -> Admission:
        """The remainder of an admission while the pods are checkpointed."""
        return without_gpus(admission, self._names.count.partition("/")[0])

    def is_drained(self, record: WorkloadRecord) -> bool:
        """True if its ClusterQueue or LocalQueue stops what runs."""
        workload = record.workload
        kept = workload.checkpointed
        queues = (
            self._catalogue.cluster_queue(kept.cluster_queue if kept is not None else ""),
            self._catalogue.local_queue(workload.namespace, workload.queue_name),
        )
        return any(
            one is not None and one.stop_policy is StopPolicy.HOLD_AND_DRAIN for one in queues
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """A workload whose pod is being checkpointed, is, or is being restored."""

    record: WorkloadRecord
    pod: HeldPod | None
    """Its only pod; None if it has none, or several."""
    answer: Checkpoint | None
    """The report of its node about what it is told now."""
    save: str
    restore: str
    """Values of the annotation for the present eviction and the present admission."""
    waited_s: float
    """Seconds since the eviction or the admission."""
    away_s: float
    """Seconds since the node of the pod last reported; 0: it does."""
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Tell:
    value: str | None
    """The new value of the pod's annotation; None: none."""


@dataclass(frozen=True, slots=True)
class NoteSaved:
    """The pod is checkpointed."""


@dataclass(frozen=True, slots=True)
class NoteRestored:
    """The pod runs again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    why: str


Step = Tell | NoteSaved | NoteRestored | GiveUp


def next_step(facts: Facts) -> Step | None:
    """The next step of a workload; None: there is nothing to do at present."""
    workload = facts.record.workload
    if workload.is_true(FINISHED):
        return None
    phase, admitted = workload.checkpoint_phase, workload.admission is not None
    if phase == CHECKPOINT_REQUESTED and workload.is_true(EVICTED) and admitted:
        return _obstacle(facts) or _late(facts) or _saving(facts)
    if phase == CHECKPOINTED and workload.checkpointed is not None:
        return _obstacle(facts) or _keeping(facts)
    if phase == RESTORING and admitted and not workload.is_true(EVICTED):
        return _obstacle(facts) or _late(facts) or _restoring(facts)
    if admitted and not workload.is_true(EVICTED) and facts.pod is not None and facts.pod.told:
        return _clearing(facts)
    return None


def _obstacle(facts: Facts) -> GiveUp | None:
    if not facts.record.workload.active:
        return GiveUp("the Workload was deactivated")
    if facts.drained:
        return GiveUp("its queue stops what runs (HoldAndDrain)")
    if facts.pod is None or facts.pod.leaving:
        return GiveUp("its pod has ended")
    if facts.away_s > AWAY_S:
        return GiveUp(f"node {facts.pod.node} has not reported for {AWAY_S:g} s")
    return None


def _late(facts: Facts) -> GiveUp | None:
    if facts.waited_s <= ANSWERED_S:
        return None
    said = f": {facts.answer.why}" if facts.answer is not None and facts.answer.why else ""
    return GiveUp(f"its node did not do it within {ANSWERED_S:g} s{said}")


def _told(facts: Facts, value: str) -> Tell | CheckpointState:
    """The pod's state, once it is told this."""
    if facts.pod is not None and facts.pod.told != value:
        return Tell(value)
    return facts.answer.state if facts.answer is not None else CheckpointState.MOVING


def _why(facts: Facts) -> str:
    return (facts.answer.why if facts.answer is not None else "") or "its node gives no reason"


def _saving(facts: Facts) -> Step | None:
    match _told(facts, facts.save):
        case Tell() as tell:
            return tell
        case CheckpointState.SAVED:
            return NoteSaved()
        case CheckpointState.MOVING:
            return None
        case _:
            return GiveUp(_why(facts))


def _keeping(facts: Facts) -> Step | None:
    match _told(facts, facts.save):
        case Tell() as tell:
            return tell
        case CheckpointState.SAVED | CheckpointState.MOVING:
            return None
        case _:
            return GiveUp(_why(facts))


def _restoring(facts: Facts) -> Step | None:
    match _told(facts, facts.restore):
        case Tell() as tell:
            return tell
        case CheckpointState.RESTORED:
            return NoteRestored()
        case CheckpointState.MOVING:
            return None
        case _:
            return GiveUp(_why(facts))


def _clearing(facts: Facts) -> Step | None:
    """The annotation of a pod that is to run, for whatever reason it has one."""
    match _told(facts, facts.restore):
        case Tell() as tell:
            return tell
        case CheckpointState.RESTORED:
            return Tell(None)
        case _:
            return None
