"""Reads the GPUs again after a GPU or its driver was added, removed or changed, once no further
change follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from nodeagent.ports.views import EventKind
from nodeagent.ports.watch import DeviceChange
from nodeagent.shell.journal import Journal

QUIET_S: Final = 1.0
"""A board that is plugged in makes many events, and its driver takes a moment."""


class Devices:
    def __init__(self, journal: Journal, refresh: Callable[[], None]) -> None:
        self._journal = journal
        self._refresh = refresh
        self._timer: asyncio.TimerHandle | None = None
        self.changes_total = 0

    def changed(self, change: DeviceChange) -> None:
        self.changes_total += 1
        driver = f", driver {change.driver}" if change.driver else ""
        text = (
            "events of devices were lost"
            if change.action == "lost"
            else f"{change.action} {change.kind} {change.name}{driver}"
        )
        self._journal.record(EventKind.DEVICE, "warning", text)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._refresh)
