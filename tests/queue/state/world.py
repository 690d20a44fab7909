"""A queue in one process: the book with a database in memory, and nodes that say what a test wants.

Every step is checked: the book must be sound, quota must be kept, and what a restart would read must be what is in
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.placement.capacity import GpuCapacity, NodeCapacity
from queuecontroller.state.book import Applied, Book, BookSettings
from queuecontroller.state.node_service import WorkReport
from queuecontroller.state.nodes.sessions import Held, Hello
from queuecontroller.state.objects.submission import Submission
from queuecontroller.state.records import (
    Assignment,
    Change,
    Desired,
    Event,
    GpuAsk,
    PodState,
    Snapshot,
    WorkloadRecord,
)
from queuecontroller.state.status import Status, Views
from tests.kit.queue import queues

T = TypeVar("T")
SECOND = 1_000_000_000
GIB = 1 << 30

TEAMS = "\n" + queues.manifests(
    queues.flavor("gpus"),
    *(queues.namespace(f"team-{team}") for team in "ab"),
    queues.priority_class("urgent", 1000),
    *(
        queues.cluster_queue(
            team,
            "gpus",
            {queues.GPU: 2},
            "preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}",
            cohort="both",
        )
        for team in "ab"
    ),
    *(queues.local_queue("q", f"team-{team}", team) for team in "ab"),
)


def documents(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


@dataclass
class MemoryStore:
    """Behaves as the database does: holds what was committed, and nothing else."""

    held: Snapshot = field(default_factory=lambda: Snapshot("cluster", 1, 0, seal_key=b"k" * 32))
    lines: list[Event] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    _staged: Change = field(default_factory=lambda: Change(""))

    def load(self) -> Snapshot:
        return deepcopy(self.held)

    def stage(self, change: Change) -> None:
        self._staged = change

    def sync(self) -> None:
        self.commit(self._staged)

    def commit(self, change: Change) -> None:
        self.labels.append(change.label)
        held = self.held
        held.revision, held.term = change.revision, change.term
        objects = {(o.kind, o.namespace, o.name): o for o in held.objects} | change.objects
        held.objects = [one for one in objects.values() if one is not None]
        workloads = {o.key: o for o in held.workloads} | change.workloads
        held.workloads = [one for one in workloads.values() if one is not None]
        assignments = {o.key: o for o in held.assignments} | change.assignments
        held.assignments = [one for one in assignments.values() if one is not None]
        nodes = {o.name: o for o in held.nodes} | change.nodes
        held.nodes = [one for one in nodes.values() if one is not None]
        usage = {o.queue: o for o in held.usage} | change.usage
        held.usage = [one for one in usage.values() if one is not None]
        held.forgotten = held.forgotten if change.forgotten is None else change.forgotten
        self.lines += change.events

    def events(self, subject: str, limit: int) -> list[Event]:
        return [one for one in reversed(self.lines) if one.subject == subject][:limit]

    def close(self) -> None:
        pass


def gpu(index: int = 0, memory: int = 80 * GIB, **more: Any) -> GpuCapacity:
    return GpuCapacity(f"GPU-{index}", index, "H100", memory, **more)


class World:
    def __init__(
        self,
        text: str = TEAMS,
        settings: BookSettings | None = None,
    ) -> None:
        self.settings = settings or BookSettings(lease_s=15, lost_after_s=60)
        self.store = MemoryStore()
        self.now_ns = 1_000 * SECOND
        self._uids = itertools.count(1)
        self._sequence = itertools.count(1)
        self.book = self._book()
        self.epochs: dict[str, int] = {}
        if text:
            self.apply(text)

    def _book(self) -> Book:
        book = Book(self.settings, True, lambda: f"uid-{next(self._uids)}")
        book.restore(self.store.load(), self.now_ns)
        return book

    # -- steps ----------------------------------------------------------------------------------

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        answer = call(self.book, self.now_ns)
        change = self.book.take(label)
        if change:
            self.store.commit(change)
        self.check()
        return answer

    def check(self) -> None:
        assert self.book.contradictions() == []
        held = {o.key: o for o in self.store.held.workloads}
        assert held == self.book.workloads.records, "the database and memory differ"
        rows = {o.key: o for o in self.store.held.assignments}
        assert rows == self.book.nodes.assignments, "the database and memory differ"
        revisions = [one.revision for one in rows.values()]
        assert len(set(revisions)) == len(revisions)
        assert all(one <= self.store.held.revision for one in revisions)

    def settle(self) -> None:
        """Cycles until nothing more is decided."""
        for _ in range(100):
            result = self.step("cycle", lambda book, now: book.workloads.cycle(now))
            if not (result.reserved or result.preempted or result.more):
                return
        raise AssertionError("the queue never came to rest")

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.step("tick", lambda book, now: book.tick(now))
        self.settle()

    def restart(self) -> None:
        """Restart as after kill -9: only the database is left."""
        self.store.held.term += 1
        self.book = self._book()
        change = self.book.take("restore")
        if change:
            self.store.commit(change)
        self.epochs = {}
        self.check()

    def apply(self, text: str) -> list[Applied]:
        found = documents(text)
        applied = self.step("apply", lambda book, now: book.apply(found, False, now))
        self.settle()
        return applied

    def submit(self, team: str = "a", name: str = "", **more: Any) -> WorkloadKey:
        more.setdefault("ask", GpuAsk(1, memory_bytes=8 * GIB, share_ppm=500_000))
        asked = Submission(f"team-{team}", "q", name=name, **more)
        record = self.step("submit", lambda book, now: book.submit(asked, now))
        self.now_ns += SECOND
        self.settle()
        return record.key

    # -- nodes ----------------------------------------------------------------------------------

    def connect(
        self,
        node: str = "n1",
        gpus: tuple[GpuCapacity, ...] = (gpu(0), gpu(1)),
        held: tuple[Held, ...] = (),
        waiting: tuple[WorkloadKey, ...] = (),
        seen: tuple[int, int] | None = None,
        cluster: str = "cluster",
        labels: dict[str, str] | None = None,
        proof: str = "",
    ) -> list[Assignment]:
        term, revision = seen or (0, 0)
        hello = Hello(
            node,
            "boot",
            cluster_id=cluster,
            seen_term=term,
            seen_revision=revision,
            epoch=self.epochs.get(node, 0),
            held=held,
            waiting=frozenset(waiting),
            capacity=NodeCapacity(gpus, labels=labels or {}),
            proof=proof,
        )
        found, decisions = self.step("connect", lambda book, now: book.desk.connect(hello, now))
        self.epochs[node] = found.record.epoch
        self.settle()
        return decisions

    def report(self, node: str = "n1", gpus: tuple[GpuCapacity, ...] = (gpu(0), gpu(1))) -> None:
        number = next(self._sequence)
        self.step(
            "report",
            lambda book, now: book.desk.report(
                node, self.epochs[node], number, NodeCapacity(gpus), now
            ),
        )
        self.settle()

    def said(self, key: WorkloadKey, pod: str = "", reason: str = "") -> WorkReport:
        one = self.assignment(key, pod)
        return WorkReport(one.node, self.epochs[one.node], key, pod, one.uid, one.attempt, reason)

    def confirm(self, key: WorkloadKey, state: str = "running", pod: str = "") -> bool:
        said = self.said(key, pod)
        known = self.step(
            "confirm", lambda book, now: book.desk.confirm(said, PodState(state), (), now)
        )
        self.settle()
        return known

    def refuse(self, key: WorkloadKey, reason: str = "no room", pod: str = "") -> bool:
        said = self.said(key, pod, reason)
        known = self.step("refuse", lambda book, now: book.desk.refuse(said, now))
        self.settle()
        return known

    def refuse_resume(self, key: WorkloadKey, reason: str = "taken", pod: str = "") -> bool:
        said = self.said(key, pod, reason)
        known = self.step("refuse", lambda book, now: book.desk.refuse_resume(said, now))
        self.settle()
        return known

    def release(self, key: WorkloadKey, finished: bool, pod: str = "") -> bool:
        said = self.said(key, pod)
        known = self.step("release", lambda book, now: book.desk.release(said, finished, now))
        self.settle()
        return known

    # -- questions ------------------------------------------------------------------------------

    def assignment(self, key: WorkloadKey, pod: str = "") -> Assignment:
        return self.book.nodes.of_workload(key)[pod]

    def told(self, key: WorkloadKey, pod: str = "") -> Desired | None:
        one = self.book.nodes.of_workload(key).get(pod)
        return one.desired if one is not None else None

    def held(self, key: WorkloadKey, state: str = "running", pod: str = "") -> Held:
        one = self.assignment(key, pod)
        row = self.book.desk.row_of(one)
        return Held(key, pod, one.uid, one.attempt, state, gpus=one.gpus, record=row)

    def status(self, key: WorkloadKey) -> Status:
        return Views(self.book).status(key, self.now_ns)

    def record(self, key: WorkloadKey) -> WorkloadRecord:
        return self.book.workloads.records[key]

    def used(self, queue: str) -> int:
        state = self.book.engine.cache.queues[queue]
        return sum(state.node.usage.values())
