"""The whole state of the queue and every step that changes it: no clock, no I/O, no waiting.

Each method receives the time and changes the state at once; `take` then returns the rows that must
be written before the change is published. The shell calls one method at a time.

Longer than 500 lines because all steps are methods of one class: a reader sees that nothing else
changes the state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from queuecontroller.gpushares.claims.room import ClaimedDevices
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.queued_room import Asks, SharesOfQueued
from queuecontroller.scheduler.lifecycle import PodsReadySettings
from queuecontroller.scheduler.model.assignment import NO_ROOM
from queuecontroller.scheduler.model.objects import StopPolicy, WorkloadKey
from queuecontroller.scheduler.model.reasons import ADMITTED, EVICTED, FINISHED
from queuecontroller.scheduler.model.settings import EngineSettings, TopologySettings
from queuecontroller.scheduler.placement.topology.both import BothDevices
from queuecontroller.scheduler.placement.topology.devices import Devices
from queuecontroller.scheduler.placement.topology.ground import Ground
from queuecontroller.scheduler.placement.topology.room import TopologyRoom
from queuecontroller.scheduler.scheduler import Scheduler
from queuecontroller.state.access import Caller
from queuecontroller.state.access.identity import OPERATOR
from queuecontroller.state.applying import Applying, Reading, SubmittedWorkloads, at_once
from queuecontroller.state.journal import Journal
from queuecontroller.state.node_service import NodeService
from queuecontroller.state.nodes.nodes_room import NodesRoom
from queuecontroller.state.nodes.pod_checkpoints import Permissions, PodCheckpoints
from queuecontroller.state.nodes.pod_moves import PodMoves, Restarts
from queuecontroller.state.nodes.sessions import SECOND_NS, Nodes
from queuecontroller.state.objects.authority import checks_said, only_checks
from queuecontroller.state.objects.catalogue import (
    WORKLOAD_KINDS,
    Catalogue,
    Identity,
    with_stop_policy,
)
from queuecontroller.state.objects.submission import Refused, Submission, record_of
from queuecontroller.state.records import (
    Change,
    Desired,
    ObjectId,
    ObjectRecord,
    Snapshot,
    WorkloadRecord,
)
from queuecontroller.state.workloads.elsewhere import RunningElsewhere
from queuecontroller.state.workloads.workloads import Workloads
from sluicecommon.kubernetes.names import LONGEST

TERM_GAP: Final = 1000
"""Increment of the term when the database is an old copy, which may lack as many starts."""
MAX_FINISHED: Final = 10_000
"""Finished workloads that are kept for display; the oldest are removed first."""
PRUNED_AT_ONCE: Final = 2000
"""Finished workloads removed per step, so that a step stays short."""


@dataclass(frozen=True, slots=True)
class Applied:
    who: Identity
    action: str
    """created, configured, unchanged, or passed over: the object does not concern the queue."""


@dataclass(frozen=True, slots=True)
class BookSettings:
    engine: EngineSettings = field(default_factory=EngineSettings)
    pods_ready: PodsReadySettings = field(default_factory=PodsReadySettings)
    lease_s: float = 15.0
    lost_after_s: float = 60.0
    requeue_lost: bool = False
    grace_s: float = 30.0
    keep_finished_s: float = 86_400.0
    most_per_user: int = 10_000
    """Workloads per user, including finished ones."""
    preempted_rests_ns: int = 0
    """Delay before a preempted workload is queued again."""
    move_cooldown_ns: int = 0
    """Time after a move in which a workload is not moved again."""
    topology: TopologySettings = field(default_factory=TopologySettings)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Settings for GPU shares of pods that Kubernetes runs."""

    defaults: Defaults
    asks: Callable[[WorkloadKey], Asks]
    """GPU-share requests of a workload's pods by pod set."""
    restarts: Restarts | None = None
    """Which running workloads may be moved to other GPUs; None: none may be."""
    permissions: Permissions | None = None
    """Which of their pods may be checkpointed when they are preempted; None: none may be."""


class Book:
    def __init__(
        self,
        settings: BookSettings,
        places: bool,
        new_uid: Callable[[], str],
        ground: Ground | None = None,
        sharing: Sharing | None = None,
        labels_of: Callable[[WorkloadKey], Mapping[str, str]] = lambda _: {},
        claimed: ClaimedDevices | None = None,
    ) -> None:
        """If `places` is false, quota alone decides, and Kubernetes places the pods; topologies
        need a `ground`, GPU shares need `sharing`. `new_uid` is an argument: randomness is I/O.
        `labels_of`: labels of a Workload; `claimed`: free devices for claims, None: they do not
        matter."""
        self.settings = settings
        self.journal = Journal()
        self.catalogue = Catalogue()
        self.nodes = Nodes(self.journal, settings.lease_s, settings.lost_after_s)
        self.nodes_room = NodesRoom(
            self.catalogue, self.nodes, self._record, settings.move_cooldown_ns
        )
        """Free GPUs of the nodes, also where workloads are not placed here."""
        self.room = self.nodes_room if places else None
        self.shares = (
            SharesOfQueued(
                self.nodes_room.stock,
                self.nodes_room.pods,
                sharing.defaults,
                sharing.asks,
                settings.engine.reclaimable_pods,
            )
            if sharing is not None
            else None
        )
        self.claimed = claimed
        self.topology = (
            TopologyRoom(
                ground,
                lambda: self.engine.cache.flavors,
                lambda: self.engine.cache.topologies,
                settings.topology,
                self._devices(),
                labels_of,
            )
            if ground is not None
            else None
        )
        if self.topology is not None and sharing is not None and sharing.restarts is not None:
            self.topology.moving = PodMoves(
                self.nodes_room, self._record, sharing.asks, sharing.restarts
            )
        self.engine = Scheduler(settings.engine, self.room or self.topology)
        self.workloads = Workloads(
            self.journal,
            self.catalogue,
            self.engine,
            self.nodes,
            self.room,
            settings.pods_ready,
            settings.grace_s,
            settings.preempted_rests_ns,
            self.nodes_room.follow if places or sharing is not None else None,
            self.nodes_room.note_move,
        )
        self.checkpoints: PodCheckpoints | None = None
        """Checkpoints of pods that Kubernetes runs; None: there are none."""
        if sharing is not None and sharing.permissions is not None:
            self.checkpoints = PodCheckpoints(
                self.nodes_room, self.catalogue, sharing.permissions, sharing.defaults.names
            )
            self.workloads.checkpoints = self.checkpoints
        self.desk = NodeService(self.nodes, self.workloads, self.journal, settings.requeue_lost)
        self.applying = Applying(self.catalogue, self.workloads, settings.most_per_user)
        self.new_nodes: Mapping[WorkloadKey, str] = {}
        """New nodes that were requested for pending workloads, in words."""
        self.moves: Mapping[WorkloadKey, str] = {}
        """Moves of running workloads that would make room for pending ones, in words; only where
        Kubernetes runs the pods."""
        self._new_uid = new_uid
        self._tokens: dict[str, WorkloadKey] = {}

    def _devices(self) -> Devices | None:
        if self.shares is None or self.claimed is None:
            return self.shares or self.claimed
        return BothDevices(self.shares, self.claimed)

    def run_elsewhere(self, elsewhere: RunningElsewhere) -> None:
        """Connect what runs workloads besides the nodes; see `Workloads.run_elsewhere`."""
        self.workloads.run_elsewhere(elsewhere)

    def listen_to_room(self, listener: Callable[[], None] | None) -> None:
        """Call `listener` whenever changes on the nodes have been taken in; None: call nothing."""
        self.nodes_room.listener = listener

    def _record(self, key: WorkloadKey) -> WorkloadRecord | None:
        return self.workloads.records.get(key)

    def restore(self, snapshot: Snapshot, now_ns: int, restored: bool = False) -> None:
        """Load the database's content. `restored` is True if the operator declares it an old copy.
        Raises ManifestError for an object that this version cannot read."""
        journal = self.journal
        journal.cluster_id = snapshot.cluster_id
        journal.term, journal.revision = snapshot.term, snapshot.revision
        journal.forgotten = snapshot.forgotten
        self.nodes.seals.key = snapshot.seal_key
        if restored:
            term = journal.term + TERM_GAP
            self.nodes.note_restored(
                "Server", "started with --restored", term, journal.revision, now_ns
            )
        for record in snapshot.objects:
            self.catalogue.put(record, self.engine)
        self._share_admission(now_ns)
        self.engine.settle()
        self.nodes.restore(snapshot.nodes, snapshot.assignments, now_ns)
        for one in snapshot.workloads:
            self.workloads.restore(one, now_ns)
            if one.token:
                self._tokens[one.token] = one.key
        if self.engine.history is not None:
            self.engine.history.restore(snapshot.usage)
        self.workloads.resume(now_ns)

    @property
    def has_news(self) -> bool:
        """True if there is something to write or to publish."""
        history = self.engine.history
        return bool(self.journal) or (history is not None and history.has_changed)

    def take(self, label: str) -> Change:
        history = self.engine.history
        for queue, record in history.take_changed().items() if history is not None else ():
            self.journal.put_usage(queue, record)
        return self.journal.take(label)

    def with_moves(self, key: WorkloadKey, reason: str, message: str) -> str:
        """The message of a pending workload, with the moves that would make room for it."""
        moves = self.moves.get(key) if reason in NO_ROOM else None
        return f"{message}; it would start if {moves}" if moves else message

    def pods_received(self) -> None:
        """Note that all pods that hold GPU shares are known by now."""
        if self.shares is not None:
            self.shares.inputs_received()

    # -- objects ----------------------------------------------------------------------------------

    def apply(
        self,
        documents: Sequence[Mapping[str, Any]],
        dry_run: bool,
        now_ns: int,
        caller: Caller = OPERATOR,
    ) -> list[Applied]:
        """Apply all documents or none. Raises ManifestError with all errors, Refused, Denied."""
        reading = at_once(self.applying.read(documents, caller))
        return self.put(reading, dry_run, now_ns)

    def put(self, reading: Reading, dry_run: bool, now_ns: int) -> list[Applied]:
        """Store a validated call in one step. Raises the same errors as `apply`."""
        self.applying.check_classes(reading)
        applied = [Applied(who, "passed over") for who in reading.passed_over]
        if dry_run:
            valid = [who for who, _ in reading.objects] + [one.who for one in reading.submitted]
            return [*applied, *(Applied(who, "valid") for who in valid)]
        self.applying.current(reading)
        put = [Applied(who, self._put_object(who, document)) for who, document in reading.objects]
        changed = [one.who.id for one in put if one.action != "unchanged"]
        if changed:
            self._settle(now_ns, changed)
        applied += put
        for one in reading.submitted:
            if reading.objects:  # Their priorities and transformations may be new.
                one = self.applying.read_submitted(one.document, one.who, reading.caller)
            applied += self._put_workloads(one, reading.caller, now_ns)
        return applied

    def _put_object(self, who: Identity, document: Mapping[str, Any]) -> str:
        body = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
        before = self.catalogue.records.get(who.id)
        if before is not None and before.body == body:
            return "unchanged"
        record = ObjectRecord(*who.id, self.journal.next_revision(), body)
        self.catalogue.put(record, self.engine)
        self.journal.put_object(record)
        return "configured" if before is not None else "created"

    def _settle(self, now_ns: int, changed: Collection[ObjectId] = ()) -> None:
        """Apply changed objects to workloads with quota, which may have to be evicted."""
        self._share_admission(now_ns)
        self._protect()
        self.engine.settle(now_ns)
        queues = {name for kind, _, name in changed if kind == "ClusterQueue"}
        local_queues = {f"{where}/{name}" for kind, where, name in changed if kind == "LocalQueue"}
        if queues or local_queues:
            concerned = [
                key
                for key, record in self.workloads.records.items()
                if (given := record.workload.admission) is not None
                and (given.cluster_queue in queues or record.workload.local_queue in local_queues)
            ]
            self.workloads.look(concerned, now_ns)
            if queues:
                self.workloads.require_checks(concerned, now_ns)

    def _protect(self) -> None:
        """Set preemption protection from the Configuration, or from the settings if it has none."""
        wanted, configured = (
            self.settings.engine.protection,
            self.catalogue.configuration.protection,
        )
        if configured is not None:
            wanted = replace(
                wanted, reclaim_ns=configured.reclaim_ns, fair_sharing_ns=configured.fair_sharing_ns
            )
        self.engine.protect(wanted)

    def _share_admission(self, now_ns: int) -> None:
        history, wanted = self.engine.history, self.catalogue.configuration.admission_fair_sharing
        if wanted == (history.settings if history is not None else None):
            return
        if history is not None and wanted is None:
            for queue in history.queues():
                self.journal.put_usage(queue, None)
        self.engine.share_admission(wanted, now_ns)

    def _put_workloads(
        self, submitted: SubmittedWorkloads, caller: Caller, now_ns: int
    ) -> list[Applied]:
        if not submitted.records:
            return [Applied(submitted.who, "passed over")]
        out = []
        for record in submitted.records:
            mine = Identity("Workload", record.workload.namespace, record.workload.name)
            before = self.workloads.records.get(record.key)
            if before is None:
                self._submit(record, now_ns)
                out.append(Applied(mine, "created"))
            elif before.manifest == record.manifest:
                out.append(Applied(mine, "unchanged"))
            else:
                self._reconfigure(before, record, submitted.document, caller, now_ns)
                out.append(Applied(mine, "configured"))
        return out

    def _submit(self, record: WorkloadRecord, now_ns: int) -> WorkloadRecord:
        workload = record.workload
        workload = replace(
            workload,
            uid=workload.uid or self._new_uid(),
            created_ns=workload.created_ns or now_ns,
            # The controller sets its own decisions; the manifest cannot.
            admission=None,
            conditions=(),
        )
        record = self.workloads.submit(record, now_ns, workload)
        self.journal.note("Created", f"Workload/{record.key}", f"by {record.user or '?'}", now_ns)
        if record.token:
            self._tokens[record.token] = record.key
        return record

    def _reconfigure(
        self,
        before: WorkloadRecord,
        after: WorkloadRecord,
        document: Mapping[str, Any],
        caller: Caller,
        now_ns: int,
    ) -> None:
        old, new = before.workload, after.workload
        if only_checks(caller, before, document):
            found = checks_said(document, before, caller, str(before.key))
            self.workloads.change(before.key, replace(old, admission_checks=found), now_ns)
            return
        changed = replace(
            old,
            pod_sets=new.pod_sets,
            queue_name=old.queue_name if old.admission is not None else new.queue_name,
            priority=new.priority,
            priority_class=new.priority_class,
            max_execution_s=new.max_execution_s,
            active=new.active,
            gated_by=new.gated_by,
            ready_timeouts_s=new.ready_timeouts_s,
        )
        if after.kind == "Workload" and document.get("status"):
            changed = replace(
                changed,
                admission_checks=new.admission_checks or old.admission_checks,
                reclaimable_pods=new.reclaimable_pods or old.reclaimable_pods,
            )
        self.workloads.records[before.key] = replace(
            before,
            asks=after.asks,
            manifest=after.manifest,
            on_preemption=after.on_preemption,
            consolidation=after.consolidation,
        )
        self.workloads.change(before.key, changed, now_ns)

    # -- single workloads -------------------------------------------------------------------------

    def submit(self, asked: Submission, now_ns: int) -> WorkloadRecord:
        """Submit a workload; a repeated token returns the first call's. Raises Refused."""
        known = self._tokens.get(asked.token) if asked.token else None
        if known is not None and known in self.workloads.records:
            found = self.workloads.records[known]
            if (found.user, found.node) != (asked.user, asked.node):
                raise Refused("exists", "that token was used for another user's submission")
            return found
        self.applying.check_number(asked.user, 1)
        record = record_of(asked, self._new_uid(), self.catalogue)
        if record.key in self.workloads.records:
            raise Refused("exists", f"there is a workload {record.key} already")
        return self._submit(record, now_ns)

    def find(self, namespace: str, name: str, uid: str = "") -> WorkloadRecord:
        """The workload's record. Raises Refused if there is none or its UID differs."""
        record = self.workloads.records.get(WorkloadKey(f"{namespace}/{name}"))
        if record is None or (uid and record.workload.uid != uid):
            raise Refused("not_found", f"no Workload {_shown(namespace)}/{_shown(name)}")
        return record

    def delete(self, identity: ObjectId, uid: str, now_ns: int) -> None:
        """Delete an object or a workload. Raises Refused."""
        kind, namespace, name = identity
        if kind in WORKLOAD_KINDS:
            record = self.find(namespace, name, uid)
            self._tokens.pop(record.token, None)
            self.workloads.remove(record.key, "deleted", now_ns)
        elif kind == "Node":
            self._delete_node(name)
        elif identity not in self.catalogue.records:
            raise Refused("not_found", f"no {Identity(*map(_shown, identity))}")
        else:
            self._check_unused(identity)
            self.forget_object(identity, now_ns)

    def forget_object(self, identity: ObjectId, now_ns: int) -> None:
        """Remove an object that is deleted elsewhere already, regardless of its holders."""
        self.catalogue.drop(identity, self.engine)
        self.workloads.figures.forget(*identity)
        self.journal.next_revision()
        self.journal.drop_object(identity)
        self._settle(now_ns, [identity])

    def _delete_node(self, name: str) -> None:
        if name not in self.nodes.nodes:
            raise Refused("not_found", f"no Node {_shown(name)}")
        try:
            self.nodes.drop(name, lambda n: f"Node {name} has work of {n} pods: delete that first")
        except ValueError as error:
            raise Refused("conflict", str(error)) from None

    def _check_unused(self, identity: ObjectId) -> None:
        """Check that no workload holds quota of an object to be deleted. Raises Refused."""
        kind, _, name = identity
        holders = [
            record.key
            for record in self.workloads.records.values()
            if (given := record.workload.admission) is not None
            and not record.workload.is_true(FINISHED)
            and (
                (kind == "ClusterQueue" and given.cluster_queue == name)
                or (
                    kind == "ResourceFlavor"
                    and any(name in one.flavors.values() for one in given.pod_sets)
                )
            )
        ]
        if holders:
            shown = ", ".join(holders[:3]) + (" …" if len(holders) > 3 else "")
            noun = "workload" if len(holders) == 1 else "workloads"
            raise Refused(
                "conflict",
                f"{kind} {name} is held by {len(holders)} {noun} ({shown}): drain it first"
                " (hold --drain)",
            )

    def hold(self, identity: ObjectId, drain: bool, now_ns: int) -> None:
        policy = StopPolicy.HOLD_AND_DRAIN if drain else StopPolicy.HOLD
        self._set_stopped(identity, policy, now_ns)

    def resume(self, identity: ObjectId, now_ns: int) -> None:
        self._set_stopped(identity, StopPolicy.NONE, now_ns)

    def _set_stopped(self, identity: ObjectId, policy: StopPolicy, now_ns: int) -> None:
        kind, namespace, name = identity
        if kind in WORKLOAD_KINDS:
            record = self.find(namespace, name)
            if record.workload.is_true(FINISHED):
                raise Refused("conflict", f"{record.key} is finished")
            active = policy is StopPolicy.NONE
            if record.workload.active != active:
                workload = replace(record.workload, active=active)
                self.workloads.change(record.key, workload, now_ns)
            return
        if kind not in ("ClusterQueue", "LocalQueue"):
            raise Refused("invalid", f"a {kind} cannot be held, only queues and workloads can")
        record_ = self.catalogue.records.get(identity)
        if record_ is None:
            raise Refused("not_found", f"no {Identity(*map(_shown, identity))}")
        document = json.loads(with_stop_policy(record_.body, policy))
        self._put_object(Identity(*identity), document)
        self._settle(now_ns, [identity])

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Apply everything that depends on time; called about once a second."""
        self._follow(now_ns)
        self.workloads.tick(now_ns)
        if self.room is None:
            self.nodes_room.expire_avoidance(now_ns)
        self.desk.tick(now_ns)
        self._prune(now_ns)

    def _follow(self, now_ns: int) -> None:
        """Update quotas that follow the nodes' reports. A node that is away still counts; only a
        lost node takes its quota with it."""
        nodes = [
            node.capacity for _, node in sorted(self.nodes.nodes.items()) if not node.record.lost
        ]
        if self.catalogue.follow(nodes, self.engine):
            self._settle(now_ns)

    def _prune(self, now_ns: int) -> None:
        finished = self.workloads.finished
        oldest_ns = now_ns - int(self.settings.keep_finished_s * SECOND_NS)
        excess = len(finished) - MAX_FINISHED
        for number, (key, at_ns) in enumerate(list(islice(finished.items(), PRUNED_AT_ONCE))):
            if at_ns >= oldest_ns and number >= excess:
                break
            if not self.nodes.of_workload(key):
                self._tokens.pop(self.workloads.records[key].token, None)
                self.workloads.remove(key, "finished long ago", now_ns)

    # -- invariants -------------------------------------------------------------------------------

    def contradictions(self) -> list[str]:
        """Violated invariants: quota without a record, work without quota. Only tests call this,
        because it visits all workloads, and a running service could not repair a violation."""
        wrong = []
        for key, record in self.workloads.records.items():
            workload = record.workload
            holds = self.engine.holding(key) is not None
            should = workload.admission is not None and not workload.is_true(FINISHED)
            if holds != should:
                wrong.append(f"{key}: holds quota {holds}, its row has {should}")
            for one in self.nodes.of_workload(key).values():
                if one.desired is Desired.RUN and not workload.is_true(ADMITTED):
                    wrong.append(f"{key}: reported as running on {one.node} without admission")
                if one.desired is Desired.RUN and workload.is_true(EVICTED):
                    wrong.append(f"{key}: reported as running on {one.node} although evicted")
        return wrong


def _shown(name: str) -> str:
    """A requested name, which may be arbitrary text, shortened for messages."""
    return name[:LONGEST] + ("…" if len(name) > LONGEST else "")
