"""Group commit: the changes of all steps in one loop iteration are one transaction and one fsync.

A step changes memory at once. Its rows go to the disk together with those of every other step since
the last transaction, and nothing is published before that transaction is durable: responses,
watchers and nodes wait in `durable`. While the disk is busy the loop continues to decide, and these
decisions are the next group; so the higher the load, the fewer fsyncs per step.

Rows are handed to the database in the loop, and only the commit runs in a thread: a thread that
needed Python between two rows would wait for the loop at each of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final

from queuecontroller.state.book import Book
from queuecontroller.state.figures import CYCLE_SECONDS, Histogram
from queuecontroller.state.records import Change, ObjectId, Store, StoreLost

Publish = Callable[[Change, set[ObjectId], set[str]], None]
"""Publishes the written change, its objects, and the nodes with decisions."""

JOINED: Final = "+"
"""Separator of the labels in one transaction."""


class Writer:
    def __init__(self, book: Book, store: Store, publish: Publish) -> None:
        self._book = book
        self._store = store
        self._publish = publish
        self._labels: dict[str, None] = {}
        self._steps = 0
        """Number of steps since the start that changed something."""
        self._written = 0
        """Number of these steps that are on the disk."""
        self._news = asyncio.Event()
        self.idle = asyncio.Event()
        """Set while no commit is in progress: new decisions are in the next group."""
        self.idle.set()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._lost: StoreLost | None = None
        self.commit_s = Histogram(CYCLE_SECONDS)

    @property
    def steps(self) -> int:
        return self._steps

    def note(self, label: str) -> None:
        """Record a step; called after each one."""
        if self._book.has_news:
            self._steps += 1
            self._labels[label] = None
            self._news.set()

    async def durable(self) -> None:
        """Wait until every step so far is on the disk. Raises StoreLost."""
        if self._lost is not None:
            raise self._lost
        if self._written >= self._steps:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._steps, future))
        await future

    async def run(self) -> None:
        """Commit until cancelled. Raises StoreLost."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "disk") as disk:
            while True:
                await self._news.wait()
                await asyncio.sleep(0)  # Other steps of this iteration join in.
                steps, change, touched, nodes = self._take()
                if change:
                    began = perf_counter()
                    self.idle.clear()
                    try:
                        self._store.stage(change)
                        # A cancellation must not leave a transaction half open.
                        await asyncio.shield(loop.run_in_executor(disk, self._store.sync))
                    except StoreLost as error:
                        self._lose(error)
                        raise
                    self.commit_s.observe(perf_counter() - began)
                    self.idle.set()
                self._tell(steps, change, touched, nodes)

    def flush(self) -> None:
        """Commit at once while no loop runs, at the start and the end. Raises StoreLost."""
        steps, change, touched, nodes = self._take()
        if change:
            self._store.stage(change)
            self._store.sync()
        self._tell(steps, change, touched, nodes)

    def _take(self) -> tuple[int, Change, set[ObjectId], set[str]]:
        self._news.clear()
        change = self._book.take(JOINED.join(self._labels))
        self._labels.clear()
        return self._steps, change, *self._book.journal.take_news()

    def _tell(self, steps: int, change: Change, touched: set[ObjectId], nodes: set[str]) -> None:
        self._written = steps
        self._publish(change, touched, nodes)
        while self._waiting and self._waiting[0][0] <= steps:
            _, future = self._waiting.popleft()
            if not future.done():  # A done future's caller was cancelled.
                future.set_result(None)

    def _lose(self, error: StoreLost) -> None:
        self._lost = error
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
