"""Work queue of keys: each key is processed by one task at a time, several keys at once.

A key that is added while it is processed is processed once more; a key that failed is processed
again after an exponential back-off. So no key is processed twice at once, and none is lost.

A write that was based on an old version of its object is no sign of trouble: its key is processed
again as soon as the watch brings the new version and adds it, else after a short pause.

A key whose processing raises an unexpected error backs off like one that the API server refused:
the object would still be there after a restart, so ending the process would stop all objects for
good.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from queuecontroller.state.figures import DEFECTS
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused

K = TypeVar("K")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
OUTDATED_PAUSE_S: Final = 1.0
"""Longest pause after writes that were based on an old version, if the watch brings no new one."""
log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    def __init__(self, name: str, do: Callable[[K], Awaitable[None]], width: int) -> None:
        """`do` processes a key. After ApiAway, ApiRefused and any other error it is called again;
        other errors are logged with a traceback and counted."""
        self._name = name
        self._do = do
        self._width = width
        self._urgent: deque[K] = deque()
        self._low_priority: deque[K] = deque()
        self._queued: set[K] = set()
        """Keys in one of the two queues."""
        self._doing: set[K] = set()
        self._again: dict[K, float] = {}
        """Keys added while they were processed, and the seconds until they are processed again."""
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        """Failed attempts in a row, apart from outdated writes."""
        self._outdated: dict[K, int] = {}
        """Outdated writes in a row."""
        self._news = asyncio.Event()
        self.done_total = 0
        self.failed_total = 0

    def __len__(self) -> int:
        return len(self._queued) + len(self._doing) + len(self._later)

    def add(self, key: K, urgent: bool = True) -> None:
        """Queue a key; after a failure not before its back-off is over, unless all that failed was
        a write to an old version."""
        if key in self._doing:
            self._again[key] = 0.0
            return
        if key in self._later and key not in self._failures:
            self._later.pop(key).cancel()
        if key not in self._queued and key not in self._later:
            self._queued.add(key)
            (self._urgent if urgent else self._low_priority).append(key)
            self._news.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key in so many seconds, unless it is queued already."""
        if key in self._doing:
            self._again.setdefault(key, seconds)
            return
        if key in self._queued or key in self._later:
            return
        loop = asyncio.get_running_loop()
        self._later[key] = loop.call_later(seconds, self._is_due, key)

    def _is_due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key, urgent=key in self._failures or key in self._outdated)

    async def run(self) -> None:
        """Process keys until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._width):
                    group.create_task(self._work())
        finally:
            for timer in self._later.values():
                timer.cancel()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        # A cancellation may be lost in a call whose own timeout ends at the same moment.
        while not task.cancelling():
            line = self._urgent or self._low_priority
            if not line:
                self._news.clear()
                await self._news.wait()
                continue
            key = line.popleft()
            self._queued.discard(key)
            self._doing.add(key)
            failed = False
            try:
                await self._do(key)
                self.done_total += 1
                self._failures.pop(key, None)
                self._outdated.pop(key, None)
            except (ApiAway, ApiRefused) as error:
                failed = True
                self.failed_total += 1
                outdated = isinstance(error, ApiRefused) and error.outdated
                counts = self._outdated if outdated else self._failures
                count = counts.get(key, 0)
                counts[key] = count + 1
                (log.info if count < 3 else log.warning)(
                    "%s %s: %s", self._name, _named(key), error
                )
            except Exception:
                failed = True
                self.failed_total += 1
                self._failures[key] = self._failures.get(key, 0) + 1
                DEFECTS.add(self._name)
                log.exception(
                    "%s %s: internal error, please report it; other objects are not affected",
                    self._name,
                    _named(key),
                )
            finally:
                self._doing.discard(key)
            again_s = self._again.pop(key, None)
            if failed:
                self.add_after(key, self._pause_s(key))
            elif again_s:
                self.add_after(key, again_s)
            elif again_s is not None:
                self.add(key)

    def _pause_s(self, key: K) -> float:
        longest_s = LONGEST_PAUSE_S if key in self._failures else OUTDATED_PAUSE_S
        count = self._failures.get(key) or self._outdated[key]
        grown: float = FIRST_PAUSE_S * 2 ** min(count - 1, 10)
        return min(longest_s, grown)


def _named(key: object) -> str:
    """Return a key for the log; of a tuple the kind that it begins with and the name at its end."""
    if not isinstance(key, tuple):
        return str(key)
    kind = key[0]
    return f"{getattr(kind, 'kind', None) or getattr(kind, 'value', kind)} {key[-1]}"
