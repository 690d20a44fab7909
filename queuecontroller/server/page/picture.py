"""Keeps the page's documents current: changed objects are refreshed in small portions, and values
that change without an event (utilization, positions) are refreshed periodically.

It only reads the book. While the page has no viewers it only collects the changed objects' names
and samples the history.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.server.page import documents as d
from queuecontroller.state.nodes.sessions import Node
from queuecontroller.state.records import Change, ObjectId
from queuecontroller.state.shell import Shell
from sluicecommon.page.board import Board, Frames, Key
from sluicecommon.page.history import STEP_S, History

MAX_EVENTS: Final = 1_000
PORTION_S: Final = 0.01
"""Time of one portion in the service's loop, enough for about 300 workloads."""
MAX_PENDING_PODS: Final = 1_000
LINE_A_ROUND: Final = 125
"""Pending workloads refreshed in each round of a quarter second: 10,000 take 20 s."""
SECOND_S: Final = 1.0
_OBJECTS: Final = ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor", "Topology")


class Picture:
    def __init__(self, shell: Shell, instance: str, head: Callable[[], dict[str, Any]]) -> None:
        """`head` returns facts about the service."""
        self._shell = shell
        self._head = head
        self.board = Board(instance)
        self.frames = Frames(self.board)
        self.history = History()
        self._dirty: dict[ObjectId, None] = {}
        self._line: deque[Key] = deque()
        self._queues_dirty = True
        self._capacities: dict[str, Any] = {}
        self._works: dict[str, set[Key]] = {}
        """Keys of the pods' documents, by workload."""
        self._states: dict[Key, tuple[str, str]] = {}
        """LocalQueue and counted state of each workload that is shown."""
        self._counts: dict[str, Counter[str]] = {}
        """Workloads by state, by LocalQueue."""
        self._gpus: dict[str, set[Key]] = {}
        """Keys of GPU documents, by node."""
        self._detections: dict[str, set[Key]] = {}
        """Keys of detection documents, by node."""
        self._pods: dict[str, set[Key]] = {}
        """Keys of the documents of pods and of reserved places, by node."""
        self._pending_pods = -1
        """State of the ledger's pending pods that is shown."""
        self._event_keys: deque[Key] = deque()
        self._events = 0
        self._next_second = 0.0
        self._next_sample = 0.0
        self._is_new = True

    # -- changes ----------------------------------------------------------------------------------

    def changed(self, change: Change, touched: Iterable[ObjectId]) -> None:
        """Record a change after it is written."""
        for identity in touched:
            self._dirty[identity] = None
        for event in change.events:
            self._events += 1
            key, found = d.event_document(self._events, event)
            self.board.put(key, found)
            self._event_keys.append(key)
            while len(self._event_keys) > MAX_EVENTS:
                self.board.drop(self._event_keys.popleft())

    # -- rounds -----------------------------------------------------------------------------------

    def sample(self, now_s: float) -> None:
        """Add a sample of every GPU to the history; called about once a second, also without
        viewers."""
        if now_s < self._next_sample:
            return
        self._next_sample = now_s + STEP_S / 3
        known: set[str] = set()
        for node in self._shell.book.nodes.nodes.values():
            given: Counter[str] = Counter()
            for shares in self._shell.book.nodes_room.given_on(node.name):
                for share in shares:
                    given[share.uuid] += share.memory_bytes
            for gpu in node.capacity.gpus:
                known.add(gpu.uuid)
                whole = gpu.memory_bytes or 1
                used = gpu.used_memory_bytes
                figures = {
                    "utilization": gpu.utilization_ratio,
                    "used": None if used is None else used / whole,
                    "given": given[gpu.uuid] / whole,
                }
                self.history.add(gpu.uuid, figures, now_s)
        self.history.keep(known)

    def round(self, now_s: float) -> bool:
        """Refresh one portion of the changed documents; returns True if more remain."""
        if self._is_new:
            self._is_new = False
            self._everything()
        ends_s = perf_counter() + PORTION_S
        if now_s >= self._next_second:
            self._next_second = now_s + SECOND_S
            self._second()
        while self._dirty and perf_counter() < ends_s:
            identity = next(iter(self._dirty))
            del self._dirty[identity]
            self._look(identity)
        if not self._dirty:
            self._go_round_the_line(ends_s)
        return bool(self._dirty)

    def _everything(self) -> None:
        views = self._shell.views
        for kind in (*_OBJECTS, "Node", "Workload"):
            self._dirty |= dict.fromkeys(views.identities(kind, ""))

    def _second(self) -> None:
        self.board.put(("Overview", "", "queue"), self._overview())
        self._look_at_nodes()
        self._look_at_pending_pods()
        if self._queues_dirty:
            self._queues_dirty = False
            self._look_at_queues()

    def _overview(self) -> dict[str, Any]:
        book = self._shell.book
        measured = book.room.fragmentation() if book.room is not None else {}
        now_ns = self._shell.now_ns()
        return {
            **self._head(),
            "term": book.journal.term,
            "cluster": book.journal.cluster_id or None,
            "unplaced": book.workloads.unplaced or None,
            "silent": self._shell.silent_loops(20.0) or None,
            "readyNodes": len(book.nodes.each_ready(now_ns)),
            "fragmentation": {
                name: [round(one.ppm / 1e6, 3), one.fits] for name, one in measured.items()
            }
            or None,
            "leftOut": dict(self.board.left_out) or None,
        }

    # -- looking ----------------------------------------------------------------------------------

    def _look(self, identity: ObjectId) -> None:
        kind, namespace, name = identity
        if kind == "Workload":
            self._look_at_workload(identity)
        elif kind == "Node":
            self._look_at_node(name)
        elif kind in ("ResourceFlavor", "Topology"):
            found = self._shell.book.catalogue.records.get(identity)
            if found is None:
                self.board.drop(identity)
                return
            make = d.flavor_document if kind == "ResourceFlavor" else d.topology_document
            self.board.put(identity, make(d.object_body(found.body)))
        elif kind == "LocalQueue":
            self._look_at_local_queue(namespace, name)
        if kind in ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor"):
            self._queues_dirty = True

    def _look_at_workload(self, key: Key) -> None:
        _, namespace, name = key
        workload = WorkloadKey(f"{namespace}/{name}")
        record = self._shell.book.workloads.records.get(workload)
        self._queues_dirty = True
        if record is None:
            self.board.drop(key)
            self._count(key, None)
            self._look_at_work(workload)
            return
        status = self._shell.views.status(workload, self._shell.now_ns())
        self.board.put(key, d.workload_document(record, status))
        counts_as = "finished" if status.phase == "Finished" else "pending"
        if record.workload.admission is not None and counts_as == "pending":
            counts_as = "admitted" if record.workload.is_true("Admitted") else "reserving"
        self._count(key, (record.workload.local_queue, counts_as))
        self._look_at_work(workload)

    def _look_at_work(self, workload: WorkloadKey) -> None:
        """Refresh the documents of its pods."""
        nodes = self._shell.book.nodes
        found: set[Key] = set()
        for one in nodes.of_workload(workload).values():
            key = d.work_key(one)
            found.add(key)
            node = nodes.nodes.get(one.node)
            usage = node.usage.get((one.workload, one.attempt)) if node is not None else None
            self.board.put(key, d.work_document(one, usage))
        for gone in self._works.pop(workload, set()) - found:
            self.board.drop(gone)
        if found:
            self._works[workload] = found

    def _count(self, key: Key, now: tuple[str, str] | None) -> None:
        before = self._states.pop(key, None)
        if now is not None:
            self._states[key] = now
        if before == now:
            return
        for one, step in ((before, -1), (now, 1)):
            if one is not None:
                queue, counts_as = one
                self._counts.setdefault(queue, Counter())[counts_as] += step
                namespace, _, name = queue.partition("/")
                self._look_at_local_queue(namespace, name)

    def _look_at_local_queue(self, namespace: str, name: str) -> None:
        key = ("LocalQueue", namespace, name)
        found = self._shell.book.catalogue.local_queue(namespace, name)
        if found is None:
            self.board.drop(key)
            return
        counts = self._counts.get(found.key, Counter())
        self.board.put(
            key,
            {
                "cq": found.cluster_queue,
                "stop": str(found.stop_policy) if found.stop_policy != "None" else None,
                "pending": counts["pending"],
                "reserving": counts["reserving"],
                "admitted": counts["admitted"],
            },
        )

    def _look_at_queues(self) -> None:
        book = self._shell.book
        names = {name for kind, _, name in book.catalogue.records if kind == "ClusterQueue"}
        cohorts: dict[str, QuotaNode | None] = {
            name: None for kind, _, name in book.catalogue.records if kind == "Cohort"
        }
        for name in names:
            self.board.put(("ClusterQueue", "", name), d.cluster_queue_document(book, name))
            state = book.engine.cache.queues.get(name)
            for above in state.node.path[1:] if state is not None else ():
                cohorts[above.name] = above
        for name, node in cohorts.items():
            self.board.put(("Cohort", "", name), d.cohort_document(book, name, node))
        for kind, wanted in (("ClusterQueue", names), ("Cohort", set(cohorts))):
            for key in self.board.keys(kind):
                if key[2] not in wanted:
                    self.board.drop(key)

    def _look_at_nodes(self) -> None:
        """Mark nodes as changed that reported, or whose lease may have ended."""
        nodes, nodes_room = self._shell.book.nodes, self._shell.book.nodes_room
        now_ns = self._shell.now_ns()
        for name, node in nodes.nodes.items():
            newest = next(reversed(node.detections), None)
            is_ready = nodes.ready(node, now_ns)
            room = nodes_room.stock.nodes.get(name)
            held = room.version if room is not None else 0
            state = (
                id(node.capacity),
                newest,
                is_ready,
                node.record.lost,
                held,
                nodes_room.cordon_of(name),
                id(node.pod_usage),
            )
            if self._capacities.get(name) != state:
                self._capacities[name] = state
                self._dirty[("Node", "", name)] = None

    def _look_at_node(self, name: str) -> None:
        nodes = self._shell.book.nodes
        node = nodes.nodes.get(name)
        before = self._gpus.pop(name, set())
        if node is None:
            self.board.drop(("Node", "", name))
            self._capacities.pop(name, None)
            for key in before | self._detections.pop(name, set()) | self._pods.pop(name, set()):
                self.board.drop(key)
            return
        is_ready = nodes.ready(node, self._shell.now_ns())
        room = self._shell.book.nodes_room
        offered = room.offered(node)
        self.board.put(("Node", "", name), d.node_document(node, offered, is_ready))
        work = list(nodes.of_node(name))
        now = dict(d.gpu_documents(name, offered, room.given_on(name)))
        for key, found in now.items():
            self.board.put(key, found)
        for key in before - now.keys():
            self.board.drop(key)
        if now:
            self._gpus[name] = set(now)
        self._look_at_detections(node)
        for workload in {one.workload for one in work}:
            self._look_at_work(workload)
        self._look_at_pods(node)

    def _look_at_pods(self, node: Node) -> None:
        """Refresh the documents of the node's pods and reserved places."""
        book = self._shell.book
        now: set[Key] = set()
        for one in book.nodes_room.pods.holders(node.name):
            key = ("Work", one.namespace, f"/{one.key}")
            now.add(key)
            record = book.workloads.records.get(WorkloadKey(one.workload))
            admission = record.workload.admission if record is not None else None
            queue = admission.cluster_queue if admission is not None else ""
            usage = node.pod_usage.get(one.key)
            self.board.put(key, d.pod_document(node.name, one, queue, usage))
        for gone in self._pods.pop(node.name, set()) - now:
            self.board.drop(gone)
        if now:
            self._pods[node.name] = now

    def _look_at_pending_pods(self) -> None:
        """Refresh the documents of pods that fit on no node; of many only the oldest are shown."""
        ledger = self._shell.book.nodes_room.pods
        if ledger.pending_changes == self._pending_pods:
            return
        self._pending_pods = ledger.pending_changes
        oldest = sorted(ledger.pending.values(), key=lambda one: one.created)[:MAX_PENDING_PODS]
        now = {("Pod", one.namespace, one.name): one for one in oldest}
        for key in self.board.keys("Pod"):
            if key not in now:
                self.board.drop(key)
        for key, one in now.items():
            self.board.put(key, d.pending_pod_document(one))

    def _look_at_detections(self, node: Node) -> None:
        found = dict(d.detection_document(node.name, one) for one in node.detections.values())
        for key, fields in found.items():
            self.board.put(key, fields)
        for key in self._detections.pop(node.name, set()) - found.keys():
            self.board.drop(key)
        if found:
            self._detections[node.name] = set(found)

    def _go_round_the_line(self, ends_s: float) -> None:
        """Refresh positions and estimates, which change with other workloads."""
        if not self._line:
            self._line.extend(
                key
                for key in self.board.keys("Workload")
                if (self.board.get(key) or {}).get("phase") in ("Pending", "Paused")
            )
        views, now_ns = self._shell.views, self._shell.now_ns()
        records = self._shell.book.workloads.records
        for _ in range(min(LINE_A_ROUND, len(self._line))):
            key = self._line.popleft()
            workload = WorkloadKey(f"{key[1]}/{key[2]}")
            record = records.get(workload)
            if record is not None:
                self.board.put(key, d.workload_document(record, views.status(workload, now_ns)))
            if perf_counter() > ends_s:
                return
