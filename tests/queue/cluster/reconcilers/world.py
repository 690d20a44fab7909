"""Reconcilers over a book and a cache, with an API server that stores what is patched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, ObjectCache, key_of
from queuecontroller.cluster.reconcilers.owners import Reconcilers
from queuecontroller.cluster.reconcilers.units import unit_of
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.frameworks.patches import merged
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.resources import Resource

T = TypeVar("T")


class Server:
    """Stores what is patched."""

    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache
        self.patches: list[Any] = []

    async def merge_patch(
        self, kind: Resource, name: str, patch: Any, namespace: str, *_: object, **__: object
    ) -> dict[str, Any]:
        self.patches.append(patch)
        found: dict[str, Any] = merged(self.cache.get(kind, f"{namespace}/{name}"), patch)
        version = int(found["metadata"]["resourceVersion"]) + 1
        return {**found, "metadata": {**found["metadata"], "resourceVersion": str(version)}}


class Steps:
    def __init__(self, book: Book) -> None:
        self.book = book

    def now_ns(self) -> int:
        return 1

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return call(self.book, 1)


class World:
    def __init__(self) -> None:
        book = Book(BookSettings(), False, lambda: "0")
        book.restore(Snapshot("", 1, 0), 0)
        self.cache = ObjectCache()
        mirror = Mirror(book, self.cache)
        self.mirror, self.book = mirror, book
        self.cache.on_update = self._updated
        self.updated: list[str] = []
        """Keys of the Workloads that an answer had before the watch."""
        self.server = Server(self.cache)
        self.reconcilers = Reconcilers(
            cast(Shell, Steps(book)),
            mirror,
            cast(ApiClient, self.server),
            lambda: True,
            cast(EventRecorder, None),
        )

    def _updated(self, kind: Resource, key: str, document: Document) -> None:
        if kind == WORKLOADS:
            self.updated.append(key)
            self._changed(key, document)

    def _changed(self, key: str, document: Document) -> None:
        self.mirror.workload(key, document, 1)
        self.reconcilers.workload_changed(key, document)

    def add(self, kind: Resource, document: dict[str, Any]) -> None:
        self.cache.take(kind, document)
        if kind == WORKLOADS:
            self._changed(key_of(document), document)

    async def _reconcile_all(self) -> None:
        running = asyncio.create_task(self.reconcilers.work_queue.run())
        while self.reconcilers.work_queue.done_total < 1:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()

    def reconcile(self, document: dict[str, Any]) -> None:
        async def one() -> None:
            self.add(WORKLOADS, document)
            self.reconcilers.work_queue.add(unit_of(WORKLOADS, key_of(document)))
            await self._reconcile_all()

        asyncio.run(one())

    def condition(self, kind: str) -> str:
        found = self.book.workloads.records[WorkloadKey("n/w")].workload.condition(kind)
        return found.reason if found is not None and found.status else ""
