"""Things to be done to objects, one at a time for each object, several objects at once.

What is asked for while it is being done is done once more; what failed is done again after a pause
that grows. So nothing is done twice at once, and nothing is forgotten.

An object that leads to a defect of ours waits like one that the API server refused: it is still
there after a restart, so ending the process would end each one that follows, for all objects.
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
log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    def __init__(self, name: str, do: Callable[[K], Awaitable[None]], width: int) -> None:
        """`do` may raise ApiAway and ApiRefused: it is done again later. So is what raises anything
        else, which is logged with its traceback and counted."""
        self._name = name
        self._do = do
        self._width = width
        self._urgent: deque[K] = deque()
        self._leisurely: deque[K] = deque()
        self._asked: set[K] = set()
        """In one of the two lines."""
        self._doing: set[K] = set()
        self._again: dict[K, float] = {}
        """Asked for while it was being done, and in how many seconds it is to be done once more."""
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._news = asyncio.Event()
        self.done_total = 0
        self.failed_total = 0

    def __len__(self) -> int:
        return len(self._asked) + len(self._doing) + len(self._later)

    def add(self, key: K, urgent: bool = True) -> None:
        """Not sooner than a pause after a failure is over."""
        if key in self._doing:
            self._again[key] = 0.0
            return
        if key in self._later and key not in self._failures:
            self._later.pop(key).cancel()
        if key not in self._asked and key not in self._later:
            self._asked.add(key)
            (self._urgent if urgent else self._leisurely).append(key)
            self._news.set()

    def add_after(self, key: K, seconds: float) -> None:
        if key in self._doing:
            self._again.setdefault(key, seconds)
            return
        if key in self._asked or key in self._later:
            return
        loop = asyncio.get_running_loop()
        self._later[key] = loop.call_later(seconds, self._is_due, key)

    def _is_due(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key, urgent=key in self._failures)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._width):
                    group.create_task(self._work())
        finally:
            for timer in self._later.values():
                timer.cancel()

    async def _work(self) -> None:
        while True:
            line = self._urgent or self._leisurely
            if not line:
                self._news.clear()
                await self._news.wait()
                continue
            key = line.popleft()
            self._asked.discard(key)
            self._doing.add(key)
            failed = False
            try:
                await self._do(key)
                self.done_total += 1
                self._failures.pop(key, None)
            except (ApiAway, ApiRefused) as error:
                failed = True
                self.failed_total += 1
                count = self._failures.get(key, 0)
                self._failures[key] = count + 1
                (log.info if count < 3 else log.warning)("%s %s: %s", self._name, key, error)
            except Exception:
                failed = True
                self.failed_total += 1
                self._failures[key] = self._failures.get(key, 0) + 1
                DEFECTS.add(self._name)
                log.exception("%s %s: a defect, please report it; others go on", self._name, key)
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
        grown: float = FIRST_PAUSE_S * 2 ** min(self._failures[key] - 1, 10)
        return min(LONGEST_PAUSE_S, grown)
