"""Runs the book: one step at a time, each written before anybody hears of it.

All of it lives in one event loop. A step is a call into the book; its change is written together
with those of the other steps of the turn (`writer.py`); then watchers are told and the caller gets
its answer. A commit that fails ends the process: memory is ahead of the disk, and the disk is
right.
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
"""Spent in cycles before others get a turn in the event loop."""
NEWS_S: Final = 0.05
"""Several changes within it are one piece of news."""
WATCHDOG_SILENCE_S: Final = 20.0
"""The slowest loop feeds the watchdog; the longest step over 100,000 workloads takes seconds."""
MOST_BEHIND: Final = 10_000
"""Changes a watcher may be behind before it is told to start over."""
NEWS_A_SECOND: Final = 300
"""One takes about 0.3 ms."""
LOOKS_A_SECOND: Final = 100
"""At all who follow something that says nothing: its place in the queue may have changed."""
EXIT_OK: Final = 0
EXIT_DEFECT: Final = 70
EXIT_STORE_LOST: Final = 75
"""EX_TEMPFAIL: start again from what is on the disk."""
EXIT_SUPERSEDED: Final = 76
"""Another controller has taken over: do not start again by yourself."""


_WORTH_A_LINE: Final = frozenset(
    {"Restored", "Adopted", "NotAdopted", "Lost", "DuplicateGpu", "PreemptedInTurns"}
)
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
        """What of a kind, and of a namespace unless it is empty, has changed since; several
        changes of one object are one. Raises TooFarBehind."""
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
        """`notify` tells who started us how we are, as in sd_notify(3)."""
        self.notify = notify
        self.book = book
        self.views = Views(book)
        self.store = store
        self._clock = clock
        self._wake = asyncio.Event()
        self._watchers: set[asyncio.Queue[ObjectId]] = set()
        self._followers: dict[ObjectId, set[asyncio.Event]] = {}
        """By the workload that they follow."""
        self._next_news_s = 0.0
        """When the next of them may be told something, by the loop's clock."""
        self._waiting_rooms: dict[str, set[WaitingRoom]] = {}
        """By node: who follows all that wait there."""
        self._node_news: dict[str, set[asyncio.Event]] = {}
        self._ended: asyncio.Future[int] | None = None
        self._reason = "starting"
        self.writer = Writer(book, store, self._publish)
        self.doors: Callable[[], Mapping[str, int]] = dict
        """How many connections there are, and how much was turned away, by what."""
        self.last_ok_ns: dict[str, int] = {}
        self.told: Callable[[set[ObjectId]], None] = lambda _: None
        """Hears of every object that changed, once that is written."""
        self.listeners: list[Callable[[Change, set[ObjectId]], None]] = []
        """The same for who only looks, with the lines of the audit trail."""

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
        self.writer.note("restore")
        self.writer.flush()

    def step(self, label: str, call: Callable[[Book, int], T]) -> T:
        """One step: raises what `call` raises, with the state as it was then, since the book
        checks before it changes; Superseded ends the process. Nobody may hear of what it did, or
        of what it found, before `durable` has returned."""
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
        """Returns when all that was done so far is on the disk. Raises StoreLost."""
        await self.writer.durable()

    def _publish(self, change: Change, touched: set[ObjectId], told: set[str]) -> None:
        for event in change.events:
            if event.kind in _WORTH_A_LINE:
                log.warning("%s %s: %s", event.kind, event.subject, event.text)
        self.told(touched)
        for listener in self.listeners:
            listener(change, touched)
        if self._watchers:
            for identity in sorted(touched):
                for queue in self._watchers:
                    with contextlib.suppress(asyncio.QueueFull):  # the watcher sees that it is full
                        queue.put_nowait(identity)
        if self._followers:
            for identity in touched:
                for event_ in self._followers.get(identity, ()):
                    event_.set()
        if self._waiting_rooms:
            self._tell_waiting_rooms(touched)
        for node in told:
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
                    room.tell(key)
            else:
                for rooms in self._waiting_rooms.values():
                    for room in rooms:
                        room.tell_gone(key)

    # -- the loop ---------------------------------------------------------------------------------

    def stop(self, status: int = EXIT_OK, reason: str = "stopping") -> None:
        self._reason = reason
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(status)

    async def run(self) -> int:
        """Decides until stopped; the exit status."""
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
            # While the disk is at work more may come: all of it is decided in one cycle then.
            await self.writer.idle.wait()
            self._wake.clear()
            ends_s = perf_counter() + CYCLES_S
            while self._cycle():
                if perf_counter() > ends_s:
                    self._wake.set()
                    break
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
        """Loops that have not come round for so long."""
        oldest_ns = self.now_ns() - int(seconds * SECOND_NS)
        return [loop for loop, at_ns in self.last_ok_ns.items() if at_ns < oldest_ns]

    # -- watching ---------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Every object that changes from now on; close it when done."""
        queue: asyncio.Queue[ObjectId] = asyncio.Queue(MOST_BEHIND)
        self._watchers.add(queue)
        return Subscription(queue, lambda: self._watchers.discard(queue), self.rest_s)

    def rest_s(self) -> float:
        """How long who watches rests between two pieces of news, so that all of them together are
        told at most NEWS_A_SECOND things, however many they are."""
        return (len(self._watchers) + len(self._followers)) / NEWS_A_SECOND

    def _until_news_s(self) -> float:
        """One follower's change is told at once; changes of thousands are spread out."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(now_s + NEWS_S, self._next_news_s)
        self._next_news_s = at_s + 1 / NEWS_A_SECOND
        return at_s - now_s

    async def follow(self, key: WorkloadKey, uid: str = "") -> AsyncGenerator[Status, None]:
        """Each different status of one workload, until it is finished or gone."""
        event = asyncio.Event()
        identity = _identity(key)
        self._followers.setdefault(identity, set()).add(event)
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
                await _within(max(TICK_S, len(self._followers) / LOOKS_A_SECOND), event)
                # Several changes at once are one piece of news.
                await asyncio.sleep(self._until_news_s())
        finally:
            mine = self._followers[identity]
            mine.discard(event)
            if not mine:
                del self._followers[identity]

    async def follow_waiting(
        self, node: str, epoch: int, keys: Iterable[WorkloadKey]
    ) -> AsyncGenerator[list[Status], None]:
        """What changes about all that wait on a node, and about `keys`; first everything, and
        something each second. Raises StaleEpoch once the session is over."""
        room = WaitingRoom(self.views, self.book.workloads, node)
        self._waiting_rooms.setdefault(node, set()).add(room)
        try:
            for key in (*keys, *self.book.workloads.by_node.get(node, ())):
                room.tell(key)
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
        """A node's decisions in order of revision, as they come; none of them each second. Raises
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
