"""Journal of the changes of one loop iteration, written as one transaction, and of the objects and
nodes to notify."""

from __future__ import annotations

from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.quota.usage_history import UsageRecord
from queuecontroller.state.records import (
    Assignment,
    Change,
    Event,
    Gap,
    NodeRecord,
    ObjectId,
    ObjectRecord,
    PodKey,
    WorkloadRecord,
)

MAX_GAPS: Final = 16
"""Restored copies that are remembered; nodes with work from before have long reconnected by
then."""


class Journal:
    def __init__(self) -> None:
        self.cluster_id = ""
        self.term = 0
        self.revision = 0
        self.forgotten: tuple[Gap, ...] = ()
        self._change = Change("")
        self.touched: set[ObjectId] = set()
        """Changed objects, whose watchers are notified once the change is written."""
        self.nodes: set[str] = set()
        """Nodes with new decisions."""

    def next_revision(self) -> int:
        self.revision += 1
        return self.revision

    def take(self, label: str) -> Change:
        """Return the change to write, which may be empty, and empty the journal."""
        change, self._change = self._change, Change("")
        change.label, change.revision, change.term = label, self.revision, self.term
        return change

    def take_news(self) -> tuple[set[ObjectId], set[str]]:
        """Return the changed objects and the nodes with new decisions, and empty both."""
        found = self.touched, self.nodes
        self.touched, self.nodes = set(), set()
        return found

    def __bool__(self) -> bool:
        return bool(self.touched or self.nodes or self._change)

    def forget_up_to(self, revision: int, gap: int) -> None:
        """Skip past every revision that may have been published, and remember the gap: the database
        is an old copy."""
        upper = max(revision, self.revision) + gap
        self.forgotten = (*self.forgotten, (self.revision, upper))[-MAX_GAPS:]
        self.revision = upper
        self._change.forgotten = self.forgotten

    def has_forgotten(self, revision: int) -> bool:
        return any(low < revision <= high for low, high in self.forgotten)

    def put_object(self, record: ObjectRecord) -> None:
        identity = (record.kind, record.namespace, record.name)
        self._change.objects[identity] = record
        self.touched.add(identity)

    def drop_object(self, identity: ObjectId) -> None:
        self._change.objects[identity] = None
        self.touched.add(identity)

    def put_workload(self, record: WorkloadRecord) -> None:
        self._change.workloads[record.key] = record
        self.touch_workload(record.key)

    def drop_workload(self, key: WorkloadKey) -> None:
        self._change.workloads[key] = None
        self.touch_workload(key)

    def touch_workload(self, key: WorkloadKey) -> None:
        namespace, _, name = key.partition("/")
        self.touched.add(("Workload", namespace, name))

    def put_assignment(self, one: Assignment, tell: bool) -> None:
        """Record an assignment. `tell` is True if the node must act, False if only its report is
        stored."""
        self._change.assignments[one.key] = one
        if tell:
            self.nodes.add(one.node)

    def drop_assignment(self, key: PodKey) -> None:
        self._change.assignments[key] = None

    def put_node(self, record: NodeRecord) -> None:
        self._change.nodes[record.name] = record
        self.touched.add(("Node", "", record.name))

    def drop_node(self, name: str) -> None:
        self._change.nodes[name] = None
        self.touched.add(("Node", "", name))

    def put_usage(self, queue: str, record: UsageRecord | None) -> None:
        """Record a queue's usage; None deletes it."""
        self._change.usage[queue] = record

    def note(self, kind: str, subject: str, text: str, now_ns: int) -> None:
        """Add a line to the audit trail."""
        self._change.events.append(Event(self.revision, now_ns, kind, subject, text))
