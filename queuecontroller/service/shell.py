"""Runs the book: one step at a time, each written before anybody hears of it.

All of it lives in one event loop. A step is a call into the book; then its change is committed;
then watchers are told and the caller gets its answer. A commit that fails ends the process: memory
is ahead of the disk, and the disk is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from time import perf_counter
from typing import Final, Protocol, TypeVar

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.records import Assignment, ObjectId, Store, StoreLost

from .book import Book
from .figures import CYCLE_SECONDS, Histogram
from .nodes import SECOND_NS, Superseded, Unproven
from .status import Status, Views

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S: Final = 1.0
CYCLES_AT_ONCE: Final = 8
"""Cycles before others get a turn in the event loop."""
WATCHDOG_SILENCE_S: Final = 20.0
"""The slowest loop feeds the watchdog; the longest step over 100,000 workloads takes seconds."""
MOST_BEHIND: Final = 10_000
"""Changes a watcher may be behind before it is told to start over."""
EXIT_OK: Final = 0
EXIT_DEFECT: Final = 70
EXIT_STORE_LOST: Final = 75
"""EX_TEMPFAIL: start again from what is on the disk."""
EXIT_SUPERSEDED: Final = 76
"""Another controller has taken over: do not start again by yourself."""


_WORTH_A_LINE: Final = frozenset({"Restored", "Adopted", "NotAdopted", "Lost", "DuplicateGpu"})
"""Kinds of events that somebody should see without asking for them."""


class Clock(Protocol):
    def now_ns(self) -> int:
        """Unix time that never runs backwards while the process lives."""


class TooFarBehind(Exception):
    """The watcher did not read for too long; it has to list again."""


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Until the event, but not for longer. Not wait_for: before Python 3.12 it may swallow a
    cancellation."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Subscription:
    def __init__(self, queue: asyncio.Queue[ObjectId], close: Callable[[], None]) -> None:
        self._queue = queue
        self.close = close

    async def next(self) -> ObjectId:
        """Raises TooFarBehind."""
        if self._queue.full():
            raise TooFarBehind("more changes than could be sent: list again")
        return await self._queue.get()


class Shell:
    def __init__(
        self, book: Book, store: Store, clock: Clock, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        """`notify` tells who started us how we are, as in sd_notify(3)."""
        self.notify = notify
        self.book = book
        self.views = Views(book)
        self.store = store
        self._clock = clock
        self._wake = asyncio.Event()
        self._watchers: set[asyncio.Queue[ObjectId]] = set()
        self._followers: set[asyncio.Event] = set()
        self._node_news: dict[str, set[asyncio.Event]] = {}
        self._ended: asyncio.Future[int] | None = None
        self._reason = "starting"
        self.cycle_s = Histogram(CYCLE_SECONDS)
        self.commit_s = Histogram(CYCLE_SECONDS)
        self.doors: Callable[[], Mapping[str, int]] = dict
        """How many connections there are, and how much was turned away, by what."""
        self.last_ok_ns: dict[str, int] = {}

    @property
    def why_not_ready(self) -> str:
        """Empty when it decides."""
        return self._reason

    def now_ns(self) -> int:
        return self._clock.now_ns()

    # -- steps ------------------------------------------------------------------------------------

    def start(self, restored: bool = False) -> None:
        """Takes over what the database holds; `restored`: it is an old copy. Raises ManifestError,
        StoreLost."""
        self.book.restore(self.store.load(), self.now_ns(), restored)
        self._commit("restore")

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        """One step: raises what `call` raises, with the state as it was then, since the book
        checks before it changes; StoreLost and Superseded end the process."""
        try:
            answer = call(self.book, self.now_ns())
        except Superseded as error:
            log.critical("%s", error)
            self.stop(EXIT_SUPERSEDED, str(error))
            raise
        except Unproven as error:
            log.error("%s", error)
            raise
        self._commit(label)
        self._wake.set()
        return answer

    def _commit(self, label: str) -> None:
        journal = self.book.journal
        change = self.book.take(label)
        touched, told = journal.touched, journal.told
        journal.touched, journal.told = set(), set()
        if change:
            began = perf_counter()
            try:
                self.store.commit(change)
            except StoreLost as error:
                log.critical("%s", error)
                self.stop(EXIT_STORE_LOST, str(error))
                raise
            self.commit_s.observe(perf_counter() - began)
            for event in change.events:
                if event.kind in _WORTH_A_LINE:
                    log.warning("%s %s: %s", event.kind, event.subject, event.text)
        self._publish(touched, told)

    def _publish(self, touched: set[ObjectId], told: set[str]) -> None:
        for identity in sorted(touched):
            for queue in self._watchers:
                with contextlib.suppress(asyncio.QueueFull):  # the watcher sees that it is full
                    queue.put_nowait(identity)
        if touched:
            for event in self._followers:
                event.set()
        for node in told:
            for event in self._node_news.get(node, ()):
                event.set()

    # -- the loop ---------------------------------------------------------------------------------

    def stop(self, status: int = EXIT_OK, reason: str = "stopping") -> None:
        self._reason = reason
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(status)

    async def run(self) -> int:
        """Decides until stopped; the exit status."""
        self._ended = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._decide()), asyncio.create_task(self._tick())]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        self._reason = ""
        try:
            return await self._ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, StoreLost | Superseded):
            log.critical("defect", exc_info=error)
            self.stop(EXIT_DEFECT, f"defect: {error}")

    async def _decide(self) -> None:
        while True:
            self._wake.clear()
            for _ in range(CYCLES_AT_ONCE):
                if not self._cycle():
                    break
            else:
                self._wake.set()
            self.last_ok_ns["decide"] = self.now_ns()
            await asyncio.sleep(0)  # others' turn
            due_ns = self.book.engine.next_wake_ns()
            left_s = TICK_S if due_ns is None else (due_ns - self.now_ns()) / SECOND_NS
            await _within(max(0.001, min(left_s, TICK_S)), self._wake)

    def _cycle(self) -> bool:
        """One cycle; True when another may decide something at once."""
        began = perf_counter()
        result = self.book.workloads.cycle(self.now_ns())
        if result.heads:
            self.cycle_s.observe(perf_counter() - began)
        self._commit("cycle")
        return bool(result.reserved or result.preempted or result.more)

    async def _tick(self) -> None:
        while True:
            self.step("tick", lambda book, now_ns: book.tick(now_ns))
            self.last_ok_ns["tick"] = self.now_ns()
            if not self.silent_loops(WATCHDOG_SILENCE_S):
                self.notify("WATCHDOG=1")
            await asyncio.sleep(TICK_S)

    def silent_loops(self, seconds: float) -> list[str]:
        """Loops that have not come round for so long."""
        oldest_ns = self.now_ns() - int(seconds * SECOND_NS)
        return [loop for loop, at_ns in self.last_ok_ns.items() if at_ns < oldest_ns]

    # -- watching ---------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Every object that changes from now on; close it when done."""
        queue: asyncio.Queue[ObjectId] = asyncio.Queue(MOST_BEHIND)
        self._watchers.add(queue)
        return Subscription(queue, lambda: self._watchers.discard(queue))

    async def follow(self, key: WorkloadKey, uid: str = "") -> AsyncGenerator[Status, None]:
        """Each different status of one workload, until it is finished or gone."""
        event = asyncio.Event()
        self._followers.add(event)
        told: Status | None = None
        try:
            while True:
                event.clear()
                status = self.views.status(key, self.now_ns())
                if uid and status.uid != uid:
                    status = Status(key)
                if status != told:
                    told = status
                    yield status
                if status.is_over:
                    return
                await _within(TICK_S, event)
                await asyncio.sleep(0.05)  # several changes at once are one piece of news
        finally:
            self._followers.discard(event)

    async def decisions(
        self, node: str, epoch: int, after_revision: int
    ) -> AsyncGenerator[Assignment | None, None]:
        """A node's decisions in order of revision; None each second without any. Raises
        StaleEpoch once the session is over."""
        event = asyncio.Event()
        self._node_news.setdefault(node, set()).add(event)
        sent = after_revision
        try:
            while True:
                event.clear()
                self.book.nodes.session(node, epoch)
                for one in self.book.nodes.decisions_after(node, sent):
                    sent = one.revision
                    yield one
                yield None
                await _within(TICK_S, event)
        finally:
            self._node_news[node].discard(event)
