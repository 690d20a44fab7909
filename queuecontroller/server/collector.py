"""Keeps Python's cycle collector from stopping the queue in the middle of a decision.

Nearly everything the queue drops is freed at once, by its reference count; the collector is there
for the rest, which is little: connections and failed calls. But a full run looks at every object
that lives, and with 100,000 workloads in line that takes longer than a hundred decisions. So it
runs between two steps of the event loop and never by itself, and what it has seen alive is taken
out of its sight (`gc.freeze`): each run sees only what came since. Once an hour it looks at
everything, for what became garbage unseen.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

MANY: Final = 5_000
"""New objects that are worth a run: it takes 2 to 3 ms, in which nobody is served."""
CHECK_S: Final = 0.05
EVERY_S: Final = 10.0
"""Between runs while little happens."""
FULL_EVERY_S: Final = 3600.0
"""With 100,000 workloads it takes a third of a second."""


class Collector:
    def __init__(self) -> None:
        self._last_full_s = 0.0
        self._next_s = 0.0

    def start(self) -> None:
        """To be called once what is to live long has been loaded."""
        gc.disable()
        self.look()

    def stop(self) -> None:
        gc.unfreeze()
        gc.enable()

    def look(self, *, full: bool = False) -> None:
        if full:
            gc.unfreeze()
        gc.collect()
        gc.freeze()

    def step(self, now_s: float = 0.0) -> None:
        """Looks if it is time to; to be called often, and never within a decision."""
        if now_s >= self._last_full_s + FULL_EVERY_S:
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
