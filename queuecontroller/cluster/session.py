"""Session of a leader: a book built from the API server's objects, and the writers and reconcilers
that carry out its decisions.

It begins with complete lists and ends with the lease. The next leader starts from the objects
again, so nothing is handed over. The file is long because everything is put together in one place.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import Final

from queuecontroller.cluster.admissionchecks.provisioner import CONFIGS, Provisioner
from queuecontroller.cluster.admissionchecks.requests import REQUESTS
from queuecontroller.cluster.autoscaling.node_requests import Autoscaling, NodeRequests
from queuecontroller.cluster.autoscaling.objects import Owner
from queuecontroller.cluster.autoscaling.pending import PendingGpus
from queuecontroller.cluster.autoscaling.scale_down import ROUNDS, ScaleDownHints
from queuecontroller.cluster.cache.claims import COUNTED
from queuecontroller.cluster.cache.job_context import DISPATCHED, SETS
from queuecontroller.cluster.cache.job_context import KINDS as JOBS
from queuecontroller.cluster.cache.kinds import (
    CAPACITY_PROVIDERS,
    CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    LIMIT_RANGES,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    OBJECTS,
    ORCHESTRATORS,
    POD_CLASSES,
    PRIORITY_CLASSES,
    RUNTIMES,
    WORKLOADS,
)
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, key_of, labels_of, split_key
from queuecontroller.cluster.dispatch import Dispatcher, Handler
from queuecontroller.cluster.leader.holder import LEASE
from queuecontroller.cluster.multikueue.dispatcher import MultiKueue
from queuecontroller.cluster.plan import Followed, Leadership, Plan
from queuecontroller.cluster.podplacement.checkpoints import PodCheckpointing
from queuecontroller.cluster.podplacement.extender_service import ExtenderService
from queuecontroller.cluster.podplacement.move_plans import MovePlans
from queuecontroller.cluster.podplacement.node_reports import NodeReports
from queuecontroller.cluster.podplacement.pod_gangs import GroupSources
from queuecontroller.cluster.podplacement.queued_pods import sharing_of
from queuecontroller.cluster.podwebhooks.node_annotations import NodeFacts
from queuecontroller.cluster.reconcilers.dynamic_quota import DynamicQuota
from queuecontroller.cluster.reconcilers.failing_nodes import FailingNodes
from queuecontroller.cluster.reconcilers.missed_owners import OWNERS
from queuecontroller.cluster.reconcilers.owners import Reconcilers
from queuecontroller.cluster.reconcilers.priorities import Priorities
from queuecontroller.cluster.reconcilers.retention import RetentionSweeper
from queuecontroller.cluster.status.events import KubernetesEvent, of_preemptor, of_workload
from queuecontroller.cluster.status.waiting import WaitingReasons, owners_to_tell
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.queue_writer import QueueWriter
from queuecontroller.cluster.writers.workload_writer import WorkloadWriter
from queuecontroller.gpushares.claims.room import ClaimedDevices
from queuecontroller.gpushares.extender.numa import TOPOLOGIES
from queuecontroller.gpushares.extender.pod_groups import KINDS as GROUP_KINDS
from queuecontroller.scheduler.model.compatibility import Feature
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    PODS_READY,
    PREEMPTED,
    WAIT_FOR_SCHEDULING,
    WAIT_FOR_START,
)
from queuecontroller.state.book import Book, Sharing
from queuecontroller.state.failed_nodes import node_failed
from queuecontroller.state.nodes.nodes_room import Cordon
from queuecontroller.state.nodes.sessions import SECOND_NS
from queuecontroller.state.records import Change, Event, ObjectId, Snapshot
from queuecontroller.state.shell import EXIT_OK, Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    STATEFUL_SETS,
    Resource,
)

log = logging.getLogger(__name__)
CLAIMS_S: Final = 0.5
"""Seconds between two counts of the claims of all pending Workloads."""
REVISION_BITS: Final = 32
"""Bits of a revision within a term: four billion decisions, in numbers below 2**60."""


class Defect(Exception):
    """The book failed: the process ends, and another replica takes over."""


class NullStore:
    """Store that keeps nothing: a session's state is in the API server's objects. `WorkloadWriter`
    writes each by itself, and undoes a decision that it could not write."""

    def __init__(self, term: int, cluster_id: str) -> None:
        """Terms begin at 1, and decisions of a later term have higher numbers: nodes remember the
        last decision they obeyed, and ignore those of an earlier leader."""
        self._term = term + 1
        self._cluster_id = cluster_id

    def load(self) -> Snapshot:
        return Snapshot(self._cluster_id, self._term, self._term << REVISION_BITS)

    def stage(self, change: Change) -> None:
        """Keep nothing."""

    def sync(self) -> None:
        """Do nothing: nothing is staged."""

    def events(self, subject: str, limit: int) -> list[Event]:
        return []

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Session:
    """One uninterrupted time as leader, from complete lists to the end of the lease."""

    def __init__(
        self, plan: Plan, client: ApiClient, followed: Followed, leadership: Leadership
    ) -> None:
        """`client` writes. Features that `plan` leaves out are off."""
        cache, may_write = followed.cache, leadership.may_write
        self._plan = plan
        self._cache = cache
        self._node_context = followed.nodes
        self._failing = FailingNodes()
        queued_shares = (
            sharing_of(cache, plan.extender, plan.sharing, followed.budgets)
            if plan.extender is not None
            else None
        )
        claimed = None
        if plan.checks_devices:
            scheduling = followed.scheduling
            claimed = ClaimedDevices(followed.claims, scheduling.pods_of, scheduling.pod)
            claimed.listener = self.room_changed
            scheduling.on_end = claimed.pod_ended
        book = Book(
            plan.book,
            False,
            plan.new_uid,
            followed.nodes.ground,
            queued_shares,
            lambda key: labels_of(cache.get(WORKLOADS, key) or {}),
            claimed,
        )
        store = NullStore(leadership.term, leadership.cluster_id)
        self.shell = Shell(book, store, plan.clock)
        self.mirror = Mirror(book, cache)
        self.recorder = EventRecorder(
            client,
            may_write,
            lambda: plan.new_uid().replace("-", "")[:16],
            plan.records_all_events,
        )
        self.workloads = WorkloadWriter(
            self.shell, self.mirror, client, may_write, self._workload_stored, self._workload_read
        )
        self.queues = QueueWriter(self.shell, self.mirror, client, may_write)
        self.reconcilers = Reconcilers(self.shell, self.mirror, client, may_write, self.recorder)
        self.priorities = Priorities(
            self.reconcilers.workload_actions, may_write, self.reconcilers.work_queue.add
        )
        self.dynamic_quota = DynamicQuota(
            cache, client, may_write, lambda: self.shell.now_ns(), plan.policy.features
        )
        self.retention = RetentionSweeper(
            self.reconcilers.workload_actions, may_write, lambda: self.shell.now_ns() / SECOND_NS
        )
        self.provisioner = Provisioner(
            self.shell,
            self.mirror,
            client,
            may_write,
            self.recorder,
            followed.is_followed,
            self._workload_stored,
        )
        self.multikueue = MultiKueue(
            self.shell,
            self.mirror,
            client,
            may_write,
            self.recorder,
            self._workload_stored,
            plan.multikueue,
            plan.namespace,
        )
        self.extender: ExtenderService | None = None
        """Answers schedulers; None: the plan has no extender."""
        self._reports: NodeReports | None = None
        if plan.extender is not None:
            self._reports = NodeReports(
                followed.nodes.ground, book.nodes, plan.extender.names.count, self.shell.now_ns()
            )
            self.extender = ExtenderService(
                self.shell,
                client,
                followed.gpu_pods,
                followed.budgets,
                may_write,
                plan.extender,
                plan.sharing,
                cache,
                self._record_preempted if plan.displaces else None,
                GroupSources(
                    followed.nodes.labels,
                    followed.is_followed,
                    lambda pod, event: self.recorder.record(pod, PODS, event),
                ),
                plan.namespace,
            )
        self.move_plans: MovePlans | None = None
        """Moves that would make room for pending Workloads; None: the plan has no extender."""
        if self.extender is not None:
            self.move_plans = MovePlans(self.shell, may_write, self._knows_holders)
        self.checkpointing: PodCheckpointing | None = None
        """Checkpoints of preempted pods; None: the plan has no extender."""
        if self.extender is not None:
            self.checkpointing = PodCheckpointing(
                self.shell,
                client,
                followed.gpu_pods,
                may_write,
                self._knows_holders,
                lambda key: cache.get(WORKLOADS, key),
                self.recorder.record,
            )
        self.node_requests: NodeRequests | None = None
        """Requests for new nodes; None: the plan has none."""
        self.scale_down_hints: ScaleDownHints | None = None
        if (given := plan.autoscaling) is not None and self.extender and queued_shares is not None:
            self.node_requests = self._make_node_requests(
                given, client, followed, leadership, (self.extender, queued_shares)
            )
            if given.scale_down_hints:
                self.scale_down_hints = ScaleDownHints(
                    self.shell,
                    client,
                    given.templates,
                    lambda: {key_of(one): one for one in cache.all_of(NODES)},
                    lambda: may_write() and self._knows_holders(),
                    given.every_s * ROUNDS,
                )
        self._node_facts: NodeFacts | None = None
        if plan.sharing is not None and plan.register_nodes:
            self._node_facts = NodeFacts(self.shell, client, plan.sharing, may_write)
        self._scheduling = followed.scheduling
        self._claims_changed = asyncio.Event()
        self._waiting = WaitingReasons()
        self._after_workload: tuple[Handler, ...] = (
            self.reconcilers.workload_changed,
            self.provisioner.workload_changed,
            self.multikueue.workload_changed,
            self.retention.changed,
            self._workload_placed,
        )
        """Handlers of a Workload that the book has already, by a watch or by our own write."""
        self._dispatcher = Dispatcher(self._handlers())
        self._began = False

    def _make_node_requests(
        self,
        settings: Autoscaling,
        client: ApiClient,
        followed: Followed,
        leadership: Leadership,
        sharing: tuple[ExtenderService, Sharing],
    ) -> NodeRequests:
        extender, queued = sharing
        served = self._plan.sharing.rules.served if self._plan.sharing is not None else frozenset()

        def is_plain(pod: Document) -> bool:
            return pod["spec"].get("schedulerName") in served and extender.is_plain(pod)

        pending = PendingGpus(
            self.shell.book,
            followed.nodes.ground,
            queued.asks,
            queued.defaults,
            followed.gpu_pods.all,
            is_plain,
        )
        return NodeRequests(
            self.shell,
            client,
            settings,
            Owner(LEASE, leadership.cluster_id, self._plan.namespace),
            pending,
            leadership.may_write,
            self.recorder.record,
            lambda key: self._cache.get(WORKLOADS, key),
            self._knows_holders,
        )

    def _knows_holders(self) -> bool:
        """True once all nodes, their reports, and all pods that hold GPUs, are known."""
        extender, reports = self.extender, self._reports
        if extender is None or reports is None or self._node_context.ground.missing_input:
            return False
        return extender.has_all_pods and reports.complete(self.shell.now_ns())

    def _follow_scheduling(self) -> None:
        """Note which admitted workloads have all their pods on nodes, from now on."""
        if self._plan.book.pods_ready.unscheduled_timeout_s is None:
            return
        self._scheduling.on_change = self._pod_bound
        for key in list(self.shell.book.workloads.records):
            self._pod_bound(key)

    def _pod_bound(self, key: WorkloadKey) -> None:
        record = self.shell.book.workloads.records.get(key)
        if not self._began or record is None or record.workload.admission is None:
            return
        ready = record.workload.condition(PODS_READY)
        if ready is None or ready.reason not in (WAIT_FOR_START, WAIT_FOR_SCHEDULING):
            return
        counts = {one.name: one.count for one in record.workload.admission.pod_sets}
        bound = self._scheduling.all_bound(key, counts)
        self.shell.step(
            "pods bound", lambda book, now_ns: book.workloads.set_bound(key, bound, now_ns)
        )

    def _record_preempted(self, pod: Document, event: KubernetesEvent) -> None:
        if self._plan.sharing is not None:
            self._plan.sharing.displaced_total += 1
        self.recorder.record(pod, PODS, event)

    async def run(self) -> None:
        """Run the session until it is cancelled. Raises Defect."""
        self.shell.on_change = self._touched
        self.shell.start()
        self.reconcilers.add_all()  # First: an eviction is complete only if nothing runs.
        if (given := self._plan.document) is not None:
            self.shell.step(
                "configure", lambda book, now_ns: book.apply([dict(given)], False, now_ns)
            )
        self.shell.step("begin", lambda book, now_ns: self.mirror.begin(now_ns))
        self._apply_cordons()
        self._began = True
        if self.checkpointing is not None:
            for document in self._cache.all_of(WORKLOADS):
                self.checkpointing.changed(key_of(document), document)
        self._follow_scheduling()
        self.queues.add_all()
        self.provisioner.add_all()
        self.multikueue.add_all()
        self.retention.add_all()
        self.priorities.add_all()
        self.dynamic_quota.add_all()
        log.info(
            "deciding, term %d: %d workloads", self.term, len(self.shell.book.workloads.records)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._decide())
            group.create_task(self.workloads.work_queue.run())
            for one in (
                *(self.queues, self.reconcilers, self.provisioner),
                *(self.retention, self.priorities, self.dynamic_quota),
            ):
                group.create_task(one.work_queue.run())
            group.create_task(self.multikueue.run())
            if self.extender is not None:
                group.create_task(self.extender.run())
            if self.move_plans is not None:
                group.create_task(self.move_plans.run())
            if self.checkpointing is not None:
                group.create_task(self.checkpointing.run())
            if self.node_requests is not None:
                group.create_task(self.node_requests.run())
            if self.scale_down_hints is not None:
                group.create_task(self.scale_down_hints.run())
            if self._node_facts is not None:
                group.create_task(self._node_facts.run())
            group.create_task(self.recorder.run())
            group.create_task(self._watch_nodes())
            group.create_task(self._count_claims())

    async def _count_claims(self) -> None:
        """Count claims again when device objects have changed, at most once in CLAIMS_S."""
        while True:
            await self._claims_changed.wait()
            self._claims_changed.clear()
            self.shell.step("claims", lambda book, now_ns: self.mirror.count_claims_again(now_ns))
            await asyncio.sleep(CLAIMS_S)

    def _apply_cordons(self) -> None:
        if (sharing := self._plan.sharing) is None:
            return
        room = self.shell.book.nodes_room
        for name, cordon in sharing.cordons.items():
            room.cordon(name, cordon)

        def cordoned(name: str, cordon: Cordon) -> None:
            if room.cordon(name, cordon):
                self.room_changed()

        sharing.on_cordon = cordoned

    async def _watch_nodes(self) -> None:
        """Detect failed nodes, and replace or evict the workloads placed there."""
        for node in self._cache.all_of(NODES):
            self.node_changed(key_of(node), node)
        ground, all_known = self._node_context.ground, False
        while True:
            await asyncio.sleep(1.0)
            if not all_known and ground.nodes and not ground.missing_input:
                # Nodes may have been deleted while no replica led.
                all_known = True
                for host in ground.lost_hosts():
                    self._failing.missing(host, monotonic())
            for host in self._failing.due(monotonic()):
                self._node_failed(host, self._failing.failed)

    def _node_failed(self, host: str, failed: frozenset[str]) -> None:
        several = Feature.SEVERAL_NODES in self._plan.policy.features
        self.shell.step(
            "node failed", lambda book, now_ns: node_failed(book, host, failed, now_ns, several)
        )

    def node_changed(self, name: str, node: Document | None) -> None:
        self._failing.seen(name, node, monotonic())

    def room_changed(self) -> None:
        """Evaluate pending workloads again: free resources on nodes have changed."""
        if self._began:
            self.shell.step("nodes", lambda book, now_ns: None)

    @property
    def term(self) -> int:
        return self.shell.book.journal.term

    async def _decide(self) -> None:
        status = await self.shell.run()
        if status != EXIT_OK:
            raise Defect(self.shell.why_not_ready)

    # -- changes ----------------------------------------------------------------------------------

    def changed(self, kind: Resource, key: str, document: Document | None) -> None:
        """Handle a change of an object; None: it was deleted. The cache has the change already."""
        if self._began:
            self._dispatcher.changed(kind, key, document)

    def followed(self, kind: Resource) -> None:
        """Answer checks again once ProvisioningRequests are served."""
        if self._began and kind == REQUESTS:
            self.provisioner.add_all()

    def _handlers(self) -> dict[Resource, tuple[Handler, ...]]:
        """The handlers of each kind, in the order in which they run."""
        reconcilers, provisioner = self.reconcilers, self.provisioner
        multikueue = self.multikueue
        table: dict[Resource, tuple[Handler, ...]] = {
            WORKLOADS: (self._workload_changed, *self._after_workload),
            PODS: (reconcilers.pod_changed,),
            STATEFUL_SETS: (reconcilers.stateful_set_changed,),
            REQUESTS: (provisioner.request_changed,),
            CONFIGS: (provisioner.config_changed,),
            MULTIKUEUE_CLUSTERS: (multikueue.cluster_changed,),
            MULTIKUEUE_CONFIGS: (multikueue.config_changed,),
        }
        for kind in (*JOBS, SETS):
            table[kind] = (partial(reconcilers.job_changed, kind),)
        for kind in OWNERS:
            table[kind] = (*table.get(kind, ()), partial(reconcilers.owner_changed, kind))
        for kind in DISPATCHED:
            table[kind] = (*table[kind], partial(multikueue.job_changed, kind))
        for kind in RUNTIMES:
            table[kind] = (reconcilers.runtime_changed,)
        for kind in COUNTED:
            table[kind] = (self._claim_changed,)
        table[DEVICE_CLASSES] = (self._class_changed, *table[DEVICE_CLASSES])
        if self.extender is not None:
            for kind in GROUP_KINDS:
                table[kind] = (partial(self.extender.group_changed, kind),)
            table[TOPOLOGIES] = (self.extender.topology_changed,)
        for kind in OBJECTS:
            table[kind] = (partial(self._object_changed, kind), partial(self._status_of, kind))
        table[LIMIT_RANGES] = (*table[LIMIT_RANGES], self._limits_changed)
        table[RUNTIME_CLASSES] = (self._limits_changed,)
        priorities = self.priorities
        table[PRIORITY_CLASSES] = (*table[PRIORITY_CLASSES], priorities.class_changed)
        table[POD_CLASSES] = (*table[POD_CLASSES], priorities.any_class_changed)
        for kind in (CAPACITY_PROVIDERS, ORCHESTRATORS, CLUSTER_QUEUES, COHORTS):
            table[kind] = (*table.get(kind, ()), self.dynamic_quota.changed)
        table[CHECKS] = (
            partial(self._object_changed, CHECKS),
            lambda key, document: self.queues.add_all(),
            provisioner.check_changed,
            multikueue.check_changed,
        )
        return table

    def _workload_changed(self, key: str, document: Document | None) -> None:
        if document is None:
            self._waiting.forget(key)
        self.shell.step(
            "workload", lambda book, now_ns: self.mirror.workload(key, document, now_ns)
        )

    def _workload_placed(self, key: str, document: Document | None) -> None:
        self._node_context.workload(key)
        if self.checkpointing is not None:
            self.checkpointing.changed(key, document)

    def _object_changed(self, kind: Resource, key: str, document: Document | None) -> None:
        self.shell.step(
            "object", lambda book, now_ns: self.mirror.object(kind, key, document, now_ns)
        )

    def _status_of(self, kind: Resource, key: str, document: Document | None) -> None:
        namespace, _, name = key.rpartition("/")
        self.queues.add([(kind.kind, namespace, name)])

    def _limits_changed(self, key: str, document: Document | None) -> None:
        """Count the pods of a namespace again, or of all for a RuntimeClass."""
        namespace, _ = split_key(key)
        self.shell.step(
            "defaults", lambda book, now_ns: self.mirror.count_pods_again(namespace, now_ns)
        )

    def _class_changed(self, key: str, document: Document | None) -> None:
        self.mirror.claims.class_changed()

    def _claim_changed(self, key: str, document: Document | None) -> None:
        self._claims_changed.set()

    def _touched(self, touched: set[ObjectId]) -> None:
        keys = [WorkloadKey(f"{one[1]}/{one[2]}") for one in touched if one[0] == "Workload"]
        self.workloads.touched(keys)
        for key in keys:
            self.queues.add(self.queues.status.touched(key))
        if len(keys) < len(touched):  # An object has changed: others may refer to it.
            self.queues.add_all()
            self.workloads.objects_changed()

    def _workload_read(self, key: WorkloadKey, document: Document | None) -> None:
        self._dispatcher.changed(WORKLOADS, key, document)

    def _record_preemption(self, target: Document) -> None:
        mine = self.shell.book.workloads.preemptor_of.get(WorkloadKey(key_of(target)))
        preemptor = self._cache.get(WORKLOADS, mine) if mine is not None else None
        if preemptor is not None:
            self.recorder.record(preemptor, WORKLOADS, of_preemptor(target))

    def _workload_stored(self, before: Document, after: Document) -> None:
        for event in of_workload(before, after):
            self.recorder.record(after, WORKLOADS, event)
            if event.reason == PREEMPTED:
                self._record_preemption(before)
        if (waits := self._waiting.changed(before, after)) is not None:
            for kind, owner in owners_to_tell(after):
                self.recorder.record(owner, kind, waits)
        for handler in self._after_workload:
            handler(key_of(after), after)
