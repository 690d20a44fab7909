"""A decision that could not be written is undone, and what its reconciler decided is decided again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.writers.workload_writer import WorkloadWriter
from queuecontroller.frameworks.patches import merged
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused

T = TypeVar("T")
KEY = WorkloadKey("n/w")
AT = "2026-11-22T10:00:00Z"


def on_hold(version: int) -> Document:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]
    held = {"type": "QuotaReserved", "status": "False", "reason": "OnHold", "message": "m", "lastTransitionTime": AT}  # fmt: skip
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": "w",
            "namespace": "n",
            "uid": "u",
            "resourceVersion": str(version),
            "creationTimestamp": AT,
        },
        "spec": {
            "queueName": "q",
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": containers}}}],
        },
        "status": {"conditions": [held]},
    }  # fmt: skip


class Steps:
    def __init__(self, book: Book) -> None:
        self.book = book

    def now_ns(self) -> int:
        return 1

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return call(self.book, 1)


class World:
    """A Workload on hold that is resumed in the book, while the API server refuses the write."""

    def __init__(self, status: int, is_watched: bool = True, is_deleted: bool = False) -> None:
        """`is_watched`: the watch reports the version that the write conflicts with before the
        refusal arrives."""
        self.status, self.is_watched, self.is_deleted = status, is_watched, is_deleted
        self.book = Book(BookSettings(), False, lambda: "0")
        self.book.restore(Snapshot("", 1, 0), 0)
        self.cache = ObjectCache()
        self.mirror = Mirror(self.book, self.cache)
        self.changes: list[str | None] = []
        self.sent: list[tuple[Any, str]] = []
        self.writer = WorkloadWriter(
            cast(Shell, Steps(self.book)),
            self.mirror,
            cast(ApiClient, self),
            lambda: True,
            lambda before, after: None,
            self.changed,
        )
        self.take(on_hold(1))
        self.book.workloads.take_off_hold(KEY, 1)
        assert not self.is_on_hold

    @property
    def is_on_hold(self) -> bool:
        return self.book.workloads.records[KEY].workload.is_on_hold

    def take(self, document: Document) -> None:
        if self.cache.take(WORKLOADS, document):
            self.mirror.workload(KEY, document, 1)

    def changed(self, key: WorkloadKey, document: Document | None) -> None:
        self.mirror.workload(key, document, 1)
        self.changes.append(document["metadata"]["resourceVersion"] if document else None)

    async def merge_patch(
        self, kind: object, name: str, patch: Any, *_: object, resource_version: str
    ) -> Any:
        self.sent.append((patch, resource_version))
        if not self.status:
            version = {"metadata": {"resourceVersion": str(len(self.sent) + 1)}}
            return merged(merged(self.cache.get(WORKLOADS, KEY), patch), version)
        if self.is_watched:
            self.take(on_hold(2))
        raise ApiRefused(self.status, "Refused", "refused")

    async def get(self, *_: object) -> Any:
        if self.is_deleted:
            raise ApiRefused(404, "NotFound", "not found")
        return on_hold(2)

    def write(self) -> None:
        async def once() -> None:
            running = asyncio.create_task(self.writer.work_queue.run())
            self.writer.work_queue.add(KEY)
            while not self.writer.work_queue.done_total:
                await asyncio.sleep(0)
            running.cancel()

        asyncio.run(once())


def test_a_decision_undone_for_a_change_that_was_reported_before_is_made_again() -> None:
    world = World(409)
    world.write()
    assert world.is_on_hold, "as stored"
    assert world.changes == ["2"], "no watch reports that version again"


def test_a_version_read_before_its_watch_reports_it_is_reconciled() -> None:
    world = World(409, is_watched=False)
    world.write()
    assert world.is_on_hold
    assert set(world.changes) == {"2"}


def test_a_deletion_found_by_reading_is_reconciled() -> None:
    world = World(409, is_watched=False, is_deleted=True)
    world.write()
    assert world.changes == [None]
    assert KEY not in world.book.workloads.records


def test_a_refusal_that_is_no_conflict_is_not_decided_again_at_once() -> None:
    world = World(422, is_watched=False)
    world.write()
    assert world.is_on_hold
    assert world.changes == ["2"], "what was read; the reconciler goes on later"


def test_a_workload_is_deactivated_whatever_else_has_changed() -> None:
    """A conflict would undo that after its eviction is stored."""
    world = World(status=0)
    workload = replace(world.book.workloads.records[KEY].workload, active=False)
    world.book.workloads.change(KEY, workload, 1)
    world.write()
    *_, (patch, version) = world.sent
    assert patch == {"spec": {"active": False}}
    assert version == ""
