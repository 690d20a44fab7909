"""Keeps Python's cycle collector from stopping the queue in the middle of a decision.

Nearly everything the queue drops is freed at once, by its reference count; the collector is there
for the rest, which is little: connections and failed calls. But its full run looks at every object
that lives, and with 100,000 workloads in line that takes longer than a hundred decisions. So what
lives is taken out of its sight (`gc.freeze`), full runs are made at set times and see only what
came since, and once an hour everything is looked at, for what became garbage unseen.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

YOUNG: Final = 10_000
"""New objects before the youngest are looked at: about 1 ms."""
MIDDLE: Final = 5
"""Such runs before those that survived one are looked at again: about 5 ms."""
NEVER: Final = 1_000_000_000
"""Full runs are not left to chance."""
EVERY_S: Final = 10.0
FULL_EVERY: Final = 360
"""An hour. With 100,000 workloads it takes a third of a second."""


class Collector:
    def __init__(self) -> None:
        self._runs = 0

    def start(self) -> None:
        """To be called once what is to live long has been loaded."""
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        self.look()

    def look(self) -> None:
        if self._runs % FULL_EVERY == 0:
            gc.unfreeze()
        self._runs += 1
        gc.collect()
        gc.freeze()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()
