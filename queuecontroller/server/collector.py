"""Schedules Python's cycle collector so that it does not pause the queue within a decision.

Nearly all objects are freed at once by their reference counts; only a few, of connections and
failed calls, need the cycle collector. A full collection traverses every live object, which takes
longer than a hundred decisions with 100,000 pending workloads. So automatic collection is off, and
collections run between two steps of the event loop. Survivors are moved to the permanent generation
(`gc.freeze`), so each run traverses only objects created since. A full collection finds frozen
objects that became garbage: once an hour, and when many have been frozen since the last one, so
that what clients leave behind stays small beside what is in use.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

MANY: Final = 5_000
"""New objects that trigger a collection, which blocks the loop for 2 to 3 ms."""
CHECK_S: Final = 0.05
EVERY_S: Final = 10.0
"""Interval of collections while few objects are created."""
FULL_EVERY_S: Final = 3600.0
"""Interval of full collections; with 100,000 workloads one takes a third of a second."""
FULL_AT: Final = 200_000
"""New frozen objects that trigger a full collection, or half of those in use if that is more."""


class Collector:
    def __init__(self) -> None:
        self._last_full_s = 0.0
        self._next_s = 0.0
        self._in_use = 0
        """Objects after the last full collection."""
        self._frozen = 0
        """Objects frozen since."""

    def start(self) -> None:
        """Take over collection; call it once the long-lived objects have been loaded."""
        gc.disable()
        self.look(full=True)

    def stop(self) -> None:
        gc.unfreeze()
        gc.enable()

    def look(self, *, full: bool = False) -> None:
        if full:
            gc.unfreeze()
        self._frozen += gc.get_count()[0]
        gc.collect()
        gc.freeze()
        if full:
            self._in_use, self._frozen = gc.get_freeze_count(), 0

    def step(self, now_s: float = 0.0) -> None:
        """Collect if it is due; call it often, and never within a decision."""
        many = self._frozen >= max(FULL_AT, self._in_use // 2)
        if many or now_s >= self._last_full_s + FULL_EVERY_S:
            self._last_full_s = now_s
            self.look(full=True)
        elif gc.get_count()[0] < MANY and now_s < self._next_s:
            return
        else:
            self.look()
        self._next_s = now_s + EVERY_S

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._last_full_s = loop.time()
        while True:
            await asyncio.sleep(CHECK_S)
            self.step(loop.time())
