"""The shell runs the book: one step at a time, each written before it is published.

It lives in one event loop. A step is a call into the book; its change is written together with
those of the other steps of the loop iteration (`writer.py`); then watchers are notified and the
caller gets its response. A failed commit ends the process: memory is ahead of the disk, and the
disk is authoritative.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from time import perf_counter
from typing import Final, Protocol, TypeVar

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.sessions import SECOND_NS, Superseded, Unproven
from queuecontroller.state.records import Assignment, Change, ObjectId, Store, StoreLost
from queuecontroller.state.status import Status, Views
from queuecontroller.state.waiting_room import WaitingRoom
from queuecontroller.state.workloads.workloads import attempt_of
from queuecontroller.state.writer import Writer
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S: Final = 1.0
CYCLES_S: Final = 0.005
"""Time spent in cycles before other tasks of the event loop run."""
NEWS_S: Final = 0.05
"""Changes within this time are published together."""
WATCHDOG_SILENCE_S: Final = 20.0
"""Longer than the slowest loop: the longest step over 100,000 workloads takes seconds."""
MAX_BEHIND: Final = 10_000
"""Changes that a watcher may lag behind before it has to list again."""
NEWS_A_SECOND: Final = 300
"""Notifications per second; one takes about 0.3 ms."""
LOOKS_A_SECOND: Final = 100
"""Evaluations per second of followed workloads without changes: their position may have changed."""
EXIT_OK: Final = 0
EXIT_DEFECT: Final = 70
EXIT_STORE_LOST: Final = 75
"""EX_TEMPFAIL: restart from the disk."""
EXIT_SUPERSEDED: Final = 76
"""Another controller has taken over: the service manager must not restart this one."""


_WORTH_A_LINE: Final = frozenset(
    {"Restored", "Adopted", "NotAdopted", "Lost", "DuplicateGpu", "PreemptedInTurns"}
)
"""Kinds of events that are logged as warnings."""


class Clock(Protocol):
    def now_ns(self) -> int:
        """Unix time in ns, which never runs backwards while the process lives."""


class TooFarBehind(Exception):
    """Raised if a watcher lags too far behind; it has to list again."""


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Wait for the event or the timeout. wait_for may swallow a cancellation before Python 3.12."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Subscription:
    def __init__(
        self,
        queue: asyncio.Queue[ObjectId],
        close: Callable[[], None],
        rest_s: Callable[[], float],
    ) -> None:
        self._queue = queue
        self.close = close
        self._rest_s = rest_s

    async def next_of(self, kind: str, namespace: str) -> list[ObjectId]:
        """Changed objects of a kind, and of a namespace unless it is empty; several changes of one
        object are merged. Raises TooFarBehind."""
        found: dict[ObjectId, None] = {}
        while True:
            if self._queue.full():
                raise TooFarBehind("more changes than could be sent: list again")
            one = await self._queue.get()
            if one[0] != kind or namespace not in ("", one[1]):
                continue
            found[one] = None
            await asyncio.sleep(self._rest_s())
            if self._queue.full():
                raise TooFarBehind("more changes than could be sent: list again")
            while not self._queue.empty():
                one = self._queue.get_nowait()
                if one[0] == kind and namespace in ("", one[1]):
                    found[one] = None
            return list(found)


class Shell:
    def __init__(
        self, book: Book, store: Store, clock: Clock, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        """`notify` sends a state to the service manager, as sd_notify(3)."""
        self.notify = notify
        self.book = book
        self.views = Views(book)
        self.store = store
        self._clock = clock
        self._wake = asyncio.Event()
        self._watchers: set[asyncio.Queue[ObjectId]] = set()
        self._followers: dict[ObjectId, set[asyncio.Event]] = {}
        """Events by the workload that is followed."""
        self._next_news_s = 0.0
        """Time of the loop's clock at which the next follower may be notified."""
        self._waiting_rooms: dict[str, set[WaitingRoom]] = {}
        """Streams of all workloads waiting on a node, by node."""
        self._node_news: dict[str, set[asyncio.Event]] = {}
        self._ended: asyncio.Future[int] | None = None
        self._reason = "starting"
        self.writer = Writer(book, store, self._publish)
        self.connection_counts: Callable[[], Mapping[str, int]] = dict
        """Number of connections and of rejections, by kind."""
        self.last_ok_ns: dict[str, int] = {}
        self.on_change: Callable[[set[ObjectId]], None] = lambda _: None
        """Called with every changed object once the change is written."""
        self.listeners: list[Callable[[Change, set[ObjectId]], None]] = []
        """Called with the change, including the audit trail, and its objects; for read-only
        listeners."""

    @property
    def why_not_ready(self) -> str:
        """Reason why the service is not ready; empty if it is."""
        return self._reason

    def now_ns(self) -> int:
        return self._clock.now_ns()

    # -- steps ------------------------------------------------------------------------------------

    def start(self, restored: bool = False) -> None:
        """Load the database; `restored` is True if it is an old copy. Raises ManifestError,
        StoreLost."""
        self.book.restore(self.store.load(), self.now_ns(), restored)
        self.writer.note("restore")
        self.writer.flush()

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        """Run one step. An exception of `call` leaves the state unchanged, since the book checks
        before it changes; Superseded ends the process. The result must not be published before
        `durable` has returned."""
        try:
            answer = call(self.book, self.now_ns())
        except Superseded as error:
            log.critical("%s", error)
            self.stop(EXIT_SUPERSEDED, str(error))
            raise
        except Unproven as error:
            log.error("%s", error)
            raise
        self.writer.note(label)
        self._wake.set()
        return answer

    async def durable(self) -> None:
        """Wait until all steps so far are on the disk. Raises StoreLost."""
        await self.writer.durable()

    def _publish(self, change: Change, touched: set[ObjectId], nodes: set[str]) -> None:
        for event in change.events:
            if event.kind in _WORTH_A_LINE:
                log.warning("%s %s: %s", event.kind, event.subject, event.text)
        self.on_change(touched)
        for listener in self.listeners:
            listener(change, touched)
        if self._watchers:
            for identity in sorted(touched):
                for queue in self._watchers:
                    with contextlib.suppress(asyncio.QueueFull):
                        # The watcher detects the full queue.
                        queue.put_nowait(identity)
        if self._followers:
            for identity in touched:
                for event_ in self._followers.get(identity, ()):
                    event_.set()
        if self._waiting_rooms:
            self._tell_waiting_rooms(touched)
        for node in nodes:
            for event_ in self._node_news.get(node, ()):
                event_.set()

    def _tell_waiting_rooms(self, touched: set[ObjectId]) -> None:
        records = self.book.workloads.records
        for kind, namespace, name in touched:
            if kind != "Workload":
                continue
            key = WorkloadKey(f"{namespace}/{name}")
            record = records.get(key)
            if record is not None:
                for room in self._waiting_rooms.get(record.node, ()):
                    room.add(key)
            else:
                for rooms in self._waiting_rooms.values():
                    for room in rooms:
                        room.add_gone(key)

    # -- the loop ---------------------------------------------------------------------------------

    def stop(self, status: int = EXIT_OK, reason: str = "stopping") -> None:
        self._reason = reason
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(status)

    async def run(self) -> int:
        """Run until stopped; returns the exit status."""
        self._ended = asyncio.get_running_loop().create_future()
        loops = BackgroundTasks(self._loop_failed)
        loops.spawn(self.writer.run(), "writer", expected=(Superseded,))
        loops.spawn(self._decide(), "scheduling", expected=(Superseded,))
        loops.spawn(self._tick(), "ticks", expected=(Superseded,))
        self._reason = ""
        try:
            status = await self._ended
        finally:
            await loops.close()
        if status == EXIT_OK:
            self.writer.flush()
        return status

    def _loop_failed(self, error: BaseException) -> None:
        if isinstance(error, StoreLost):
            log.critical("%s", error)
            self.stop(EXIT_STORE_LOST, str(error))
        else:
            log.critical("defect", exc_info=error)
            self.stop(EXIT_DEFECT, f"defect: {error}")

    async def _decide(self) -> None:
        while True:
            # Work that arrives during a commit is decided in one cycle afterwards.
            await self.writer.idle.wait()
            self._wake.clear()
            ends_s = perf_counter() + CYCLES_S
            while self._cycle():
                if perf_counter() > ends_s:
                    self._wake.set()
                    break
            self.last_ok_ns["decide"] = self.now_ns()
            await asyncio.sleep(0)  # Lets other tasks run.
            due_ns = self.book.engine.next_wake_ns()
            left_s = TICK_S if due_ns is None else (due_ns - self.now_ns()) / SECOND_NS
            await _within(max(0.001, min(left_s, TICK_S)), self._wake)

    def _cycle(self) -> bool:
        """Run one cycle; True if another may decide something at once."""
        began = perf_counter()
        result = self.book.workloads.cycle(self.now_ns())
        if result.heads:
            figures = self.book.workloads.figures
            figures.attempt(attempt_of(result), perf_counter() - began)
        self.writer.note("cycle")
        return bool(result.reserved or result.preempted or result.more)

    async def _tick(self) -> None:
        while True:
            self.step("tick", lambda book, now_ns: book.tick(now_ns))
            self.last_ok_ns["tick"] = self.now_ns()
            if not self.silent_loops(WATCHDOG_SILENCE_S):
                self.notify("WATCHDOG=1")
            await asyncio.sleep(TICK_S)

    def silent_loops(self, seconds: float) -> list[str]:
        """Loops that have not completed an iteration for `seconds`."""
        oldest_ns = self.now_ns() - int(seconds * SECOND_NS)
        return [loop for loop, at_ns in self.last_ok_ns.items() if at_ns < oldest_ns]

    # -- watching ---------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Watch every object from now on; the caller closes the subscription."""
        queue: asyncio.Queue[ObjectId] = asyncio.Queue(MAX_BEHIND)
        self._watchers.add(queue)
        return Subscription(queue, lambda: self._watchers.discard(queue), self.rest_s)

    def rest_s(self) -> float:
        """Pause of a watcher between two notifications, so that all watchers together get at most
        NEWS_A_SECOND."""
        return (len(self._watchers) + len(self._followers)) / NEWS_A_SECOND

    def _until_news_s(self) -> float:
        """Delay of a follower's notification: short for one, spread out for thousands."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s + NEWS_S, self._next_news_s)
        self._next_news_s = at_s + 1 / NEWS_A_SECOND
        return at_s - now_s

    async def follow(self, key: WorkloadKey, uid: str = "") -> AsyncGenerator[Status, None]:
        """Each new status of one workload, until it is finished or gone."""
        event = asyncio.Event()
        identity = _identity(key)
        self._followers.setdefault(identity, set()).add(event)
        before: Status | None = None
        try:
            while True:
                event.clear()
                status = self.views.status(key, self.now_ns())
                if uid and status.uid != uid:
                    status = Status(key)
                if status != before:
                    before = status
                    yield status
                if status.is_over:
                    return
                await _within(max(TICK_S, len(self._followers) / LOOKS_A_SECOND), event)
                # Several changes at once are merged.
                await asyncio.sleep(self._until_news_s())
        finally:
            mine = self._followers[identity]
            mine.discard(event)
            if not mine:
                del self._followers[identity]

    async def follow_waiting(
        self, node: str, epoch: int, keys: Iterable[WorkloadKey]
    ) -> AsyncGenerator[list[Status], None]:
        """Status changes of all workloads waiting on a node, and of `keys`; all statuses first, and
        a message each second, possibly empty. Raises StaleEpoch once the session is over."""
        room = WaitingRoom(self.views, self.book.workloads, node)
        self._waiting_rooms.setdefault(node, set()).add(room)
        try:
            for key in (*keys, *self.book.workloads.by_node.get(node, ())):
                room.add(key)
            while True:
                self.book.nodes.session(node, epoch)
                yield room.news(self.now_ns())
                await _within(TICK_S, room.event)
                await asyncio.sleep(NEWS_S)
        finally:
            rooms = self._waiting_rooms[node]
            rooms.discard(room)
            if not rooms:
                del self._waiting_rooms[node]

    async def decisions(
        self, node: str, epoch: int, after_revision: int
    ) -> AsyncGenerator[list[Assignment], None]:
        """A node's decisions in order of revision; an empty list each second without any. Raises
        StaleEpoch once the session is over."""
        event = asyncio.Event()
        self._node_news.setdefault(node, set()).add(event)
        sent = after_revision
        try:
            while True:
                event.clear()
                self.book.nodes.session(node, epoch)
                found = self.book.nodes.decisions_after(node, sent)
                if found:
                    sent = found[-1].revision
                yield found
                if not found:
                    await _within(TICK_S, event)
        finally:
            mine = self._node_news[node]
            mine.discard(event)
            if not mine:
                del self._node_news[node]


def _identity(key: WorkloadKey) -> ObjectId:
    namespace, _, name = key.partition("/")
    return ("Workload", namespace, name)
