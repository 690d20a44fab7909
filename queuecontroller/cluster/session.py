"""One leader's time: a book made of what the API server has, and what carries out its decisions.

It begins with lists that are complete and ends with the lease; the next begins anew from the
objects, so nothing has to be handed over.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from time import monotonic
from typing import Final

from queuecontroller.cluster.admissionchecks.provisioner import CONFIGS, Provisioner
from queuecontroller.cluster.admissionchecks.requests import REQUESTS
from queuecontroller.cluster.cache.claims import KINDS as CLAIM_KINDS
from queuecontroller.cluster.cache.job_context import KINDS as JOBS
from queuecontroller.cluster.cache.job_context import SETS
from queuecontroller.cluster.cache.kinds import CHECKS, OBJECTS, RUNTIMES, WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, key_of
from queuecontroller.cluster.dispatch import Dispatcher, Handler
from queuecontroller.cluster.plan import Followed, Leadership, Plan
from queuecontroller.cluster.podplacement.extender_service import ExtenderService
from queuecontroller.cluster.podplacement.queued_pods import sharing_of
from queuecontroller.cluster.podwebhooks.node_annotations import NodeFacts
from queuecontroller.cluster.reconcilers.failing_nodes import FailingNodes
from queuecontroller.cluster.reconcilers.owners import Reconcilers
from queuecontroller.cluster.reconcilers.retention import RetentionSweeper
from queuecontroller.cluster.status.events import KubernetesEvent, of_preemptor, of_workload
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.queue_writer import QueueWriter
from queuecontroller.cluster.writers.workload_writer import WorkloadWriter
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import PREEMPTED
from queuecontroller.state.book import Book
from queuecontroller.state.failed_nodes import node_failed
from queuecontroller.state.nodes.nodes_room import Cordon
from queuecontroller.state.nodes.sessions import SECOND_NS
from queuecontroller.state.records import Change, Event, ObjectId, Snapshot
from queuecontroller.state.shell import EXIT_OK, Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import NODES, PODS, STATEFUL_SETS, Resource

log = logging.getLogger(__name__)
CLAIMS_S: Final = 0.5
"""Between two counts of the claims of all that wait."""
REVISION_BITS: Final = 32
"""Decisions of one term: four billion, in numbers below 2**60."""


class Defect(Exception):
    """Ours: the process ends, and another takes over."""


class NullStore:
    """The store of a book whose rows are objects in the API server: `WorkloadWriter` writes them,
    each by itself, and what could not be written is undone."""

    def __init__(self, term: int, cluster_id: str) -> None:
        """Nodes keep what they have obeyed: terms begin at 1, and decisions of a later term have
        higher numbers, so that whoever follows this leader is never taken for a predecessor."""
        self._term = term + 1
        self._cluster_id = cluster_id

    def load(self) -> Snapshot:
        return Snapshot(self._cluster_id, self._term, self._term << REVISION_BITS)

    def stage(self, change: Change) -> None:
        """Nothing is kept."""

    def sync(self) -> None:
        """As above."""

    def events(self, subject: str, limit: int) -> list[Event]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class Session:
    """The time of one leader, from complete lists to the end of its lease."""

    def __init__(
        self, plan: Plan, client: ApiClient, followed: Followed, leadership: Leadership
    ) -> None:
        """`client` writes. Features that `plan` leaves out are off."""
        cache, may_write = followed.cache, leadership.may_write
        self._plan = plan
        self._cache = cache
        self._nodes = followed.nodes
        self._failing = FailingNodes()
        queued_shares = (
            sharing_of(cache, plan.extender, plan.sharing) if plan.extender is not None else None
        )
        book = Book(plan.book, False, plan.new_uid, followed.nodes.ground, queued_shares)
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
            self.shell, self.mirror, client, may_write, self._workload_stored
        )
        self.queues = QueueWriter(self.shell, self.mirror, client, may_write)
        self.reconcilers = Reconcilers(self.shell, self.mirror, client, may_write, self.recorder)
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
        self.extender: ExtenderService | None = None
        """Answers schedulers; None: the plan has no extender."""
        if plan.extender is not None:
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
            )
        self._node_facts: NodeFacts | None = None
        if plan.sharing is not None and plan.register_nodes:
            self._node_facts = NodeFacts(self.shell, client, plan.sharing, may_write)
        self._claims_changed = asyncio.Event()
        self._dispatcher = Dispatcher(self._handlers())
        self._began = False

    def _record_preempted(self, pod: Document, event: KubernetesEvent) -> None:
        if self._plan.sharing is not None:
            self._plan.sharing.displaced_total += 1
        self.recorder.record(pod, PODS, event)

    async def run(self) -> None:
        """Until cancelled. Raises Defect."""
        self.shell.told = self._told
        self.shell.start()
        self.reconcilers.add_all()  # before: whose eviction is complete depends on what runs
        if (given := self._plan.document) is not None:
            self.shell.step(
                "configure", lambda book, now_ns: book.apply([dict(given)], False, now_ns)
            )
        self.shell.step("begin", lambda book, now_ns: self.mirror.begin(now_ns))
        self._apply_cordons()
        self._began = True
        self.queues.add_all()
        self.provisioner.add_all()
        self.retention.add_all()
        log.info(
            "deciding, term %d: %d workloads", self.term, len(self.shell.book.workloads.records)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(self._decide())
            group.create_task(self.workloads.work_queue.run())
            for one in (self.queues, self.reconcilers, self.provisioner, self.retention):
                group.create_task(one.work_queue.run())
            if self.extender is not None:
                group.create_task(self.extender.run())
            if self._node_facts is not None:
                group.create_task(self._node_facts.run())
            group.create_task(self.recorder.run())
            group.create_task(self._watch_nodes())
            group.create_task(self._count_claims())

    async def _count_claims(self) -> None:
        """Anew, whenever what they count by has changed; not for each slice of many nodes."""
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

        def told(name: str, cordon: Cordon) -> None:
            if room.cordon(name, cordon):
                self.room_changed()

        sharing.on_cordon = told

    async def _watch_nodes(self) -> None:
        """Who fails, and what then becomes of those who were given places there."""
        for node in self._cache.all_of(NODES):
            self.node_changed(key_of(node), node)
        while True:
            await asyncio.sleep(1.0)
            for host in self._failing.due(monotonic()):
                self._node_failed(host, self._failing.failed)

    def _node_failed(self, host: str, failed: frozenset[str]) -> None:
        self.shell.step("node failed", lambda book, now_ns: node_failed(book, host, failed, now_ns))

    def node_changed(self, name: str, node: Document | None) -> None:
        self._failing.seen(name, node, monotonic())

    def room_changed(self) -> None:
        """On the nodes: who waits for some is looked at."""
        if self._began:
            self.shell.step("nodes", lambda book, now_ns: None)

    @property
    def term(self) -> int:
        return self.shell.book.journal.term

    async def _decide(self) -> None:
        status = await self.shell.run()
        if status != EXIT_OK:
            raise Defect(self.shell.why_not_ready)

    # -- what is heard ----------------------------------------------------------------------------

    def changed(self, kind: Resource, key: str, document: Document | None) -> None:
        """Take in a change of an object, None: its deletion. The cache has it already."""
        if self._began:
            self._dispatcher.changed(kind, key, document)

    def _handlers(self) -> dict[Resource, tuple[Handler, ...]]:
        """The handlers of each kind, in the order in which they run."""
        reconcilers, provisioner = self.reconcilers, self.provisioner
        table: dict[Resource, tuple[Handler, ...]] = {
            WORKLOADS: (
                self._workload_changed,
                reconcilers.workload_changed,
                provisioner.workload_changed,
                self.retention.changed,
                self._workload_placed,
            ),
            PODS: (reconcilers.pod_changed,),
            STATEFUL_SETS: (reconcilers.stateful_set_changed,),
            REQUESTS: (provisioner.request_changed,),
            CONFIGS: (provisioner.config_changed,),
        }
        for kind in (*JOBS, SETS):
            table[kind] = (partial(reconcilers.job_changed, kind),)
        for kind in RUNTIMES:
            table[kind] = (reconcilers.runtime_changed,)
        for kind in CLAIM_KINDS:
            table[kind] = (self._claim_changed,)
        for kind in OBJECTS:
            table[kind] = (partial(self._object_changed, kind), partial(self._status_of, kind))
        table[CHECKS] = (
            partial(self._object_changed, CHECKS),
            lambda key, document: self.queues.add_all(),
            provisioner.check_changed,
        )
        return table

    def _workload_changed(self, key: str, document: Document | None) -> None:
        self.shell.step(
            "workload", lambda book, now_ns: self.mirror.workload(key, document, now_ns)
        )

    def _workload_placed(self, key: str, document: Document | None) -> None:
        self._nodes.workload(key)

    def _object_changed(self, kind: Resource, key: str, document: Document | None) -> None:
        self.shell.step(
            "object", lambda book, now_ns: self.mirror.object(kind, key, document, now_ns)
        )

    def _status_of(self, kind: Resource, key: str, document: Document | None) -> None:
        namespace, _, name = key.rpartition("/")
        self.queues.add([(kind.kind, namespace, name)])

    def _claim_changed(self, key: str, document: Document | None) -> None:
        self._claims_changed.set()

    def _told(self, touched: set[ObjectId]) -> None:
        keys = [WorkloadKey(f"{one[1]}/{one[2]}") for one in touched if one[0] == "Workload"]
        self.workloads.touched(keys)
        for key in keys:
            self.queues.add(self.queues.status.touched(key))
        if len(keys) < len(touched):  # an object: others may name it
            self.queues.add_all()
            self.workloads.objects_changed()

    def _tell_preemptor(self, target: Document) -> None:
        mine = self.shell.book.workloads.preemptor_of.get(WorkloadKey(key_of(target)))
        preemptor = self._cache.get(WORKLOADS, mine) if mine is not None else None
        if preemptor is not None:
            self.recorder.record(preemptor, WORKLOADS, of_preemptor(target))

    def _workload_stored(self, before: Document, after: Document) -> None:
        for told in of_workload(before, after):
            self.recorder.record(after, WORKLOADS, told)
            if told.reason == PREEMPTED:
                self._tell_preemptor(before)
        self.reconcilers.workload_changed(key_of(after), after)
        self._nodes.workload(key_of(after))
        self.provisioner.workload_changed(key_of(after), after)
        self.retention.changed(key_of(after), after)
