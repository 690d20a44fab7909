"""Events of this node for people: the last ones, numbered. Repeats are counted, so that a flood of
one event does not displace the others."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from nodeagent.core.watch.detection import Rule
from nodeagent.ports.clock import Clock
from nodeagent.ports.views import EventKind, NodeEvent
from nodeagent.units import NS_PER_S, GrantId

log = logging.getLogger(__name__)

KEEP: Final = 1000


class Journal:
    def __init__(self, clock: Clock, repeat_s: float) -> None:
        """`repeat_s`: seconds after which the same event is recorded again."""
        self._clock = clock
        self._repeat_ns = int(repeat_s * NS_PER_S)
        self._events: deque[NodeEvent] = deque(maxlen=KEEP)
        self._recorded: dict[str, int] = {}
        self._next = 1
        self._wake: set[asyncio.Event] = set()
        self.suppressed_total = 0

    def record(
        self,
        kind: Rule | EventKind,
        level: str,
        text: str,
        *,
        once: str = "",
        uid: int | None = None,
        grant: GrantId | None = None,
        pid: int = 0,
        evidence: Mapping[str, float | int | str] | None = None,
        logged: bool = False,
    ) -> bool:
        """Record an event. A repetition with the same `once` is only counted for a while. With
        `uid` None only operators see it. `logged` is True if it is in the log already."""
        now_ns = self._clock.monotonic_ns()
        if once:
            before = self._recorded.get(once)
            if before is not None and now_ns - before < self._repeat_ns:
                self.suppressed_total += 1
                return False
            self._recorded[once] = now_ns
            if len(self._recorded) > 4 * KEEP:
                oldest_ns = now_ns - self._repeat_ns
                self._recorded = {key: at for key, at in self._recorded.items() if at > oldest_ns}
        body = json.dumps(evidence or {}, sort_keys=True)
        event = NodeEvent(
            self._next, self._clock.unix_s(), kind, level, text, uid, grant, pid, body
        )
        self._next += 1
        self._events.append(event)
        number = {"info": logging.INFO, "warning": logging.WARNING}.get(level, logging.ERROR)
        if not logged:
            log.log(number, "%s: %s%s", kind, text, f" {body}" if evidence else "")
        for one in self._wake:
            one.set()
        return True

    def after(self, number: int) -> list[NodeEvent]:
        return [event for event in self._events if event.number > number]

    async def follow(self, number: int, follow: bool) -> AsyncGenerator[NodeEvent, None]:
        """Yields the recorded events, then new ones until the caller leaves."""
        news = asyncio.Event()
        self._wake.add(news)
        try:
            while True:
                news.clear()
                for event in self.after(number):
                    number = event.number
                    yield event
                if not follow:
                    return
                await news.wait()
        finally:
            self._wake.discard(news)
