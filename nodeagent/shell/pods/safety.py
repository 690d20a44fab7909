"""Periodic check for settings of this node that let pods bypass their grants.

The daemon only reports them, since the settings belong to other components: in the log when one
changes, in `sluice doctor`, and in the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeagent.core.metrics import catalogue as m
from nodeagent.ports.views import Finding, Samples
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SafetyLook:
    toolkit: Finding
    toolkit_accepts: bool | None
    """True if the container runtime gives GPUs to containers that set NVIDIA_VISIBLE_DEVICES; None
    if unknown."""
    plugins: Finding
    cdi: Finding | None = None
    """Finding on whether containers can be given GPUs; None: no GPU is known yet."""

    def findings(self) -> list[Finding]:
        return [self.toolkit, self.plugins, *([self.cdi] if self.cdi is not None else [])]


class SafetyWatch:
    """Implements Endpoint."""

    def __init__(
        self,
        look: Callable[[], SafetyLook],
        fatal: Callable[[BaseException], None],
        every_s: float = EVERY_S,
    ) -> None:
        """`look` may block for a second or so; it is called in a thread."""
        self._look = look
        self._background = BackgroundTasks(fatal)
        self._every_s = every_s
        self._reported: dict[str, Finding] = {}
        self.last: SafetyLook | None = None

    async def start(self) -> None:
        self._background.spawn(self._loop(), "safety checks")

    async def close(self) -> None:
        await self._background.close()

    def findings(self) -> list[Finding]:
        """Findings of the last check, for `sluice doctor`."""
        return [] if self.last is None else self.last.findings()

    def counters(self) -> Samples:
        """Figures for the metrics; unknown ones are absent."""
        if self.last is None:
            return {}
        found = {m.PLUGIN_CONFLICT: float(self.last.plugins.level != "ok")}
        if self.last.toolkit_accepts is not None:
            found[m.TOOLKIT_ACCEPTS] = float(self.last.toolkit_accepts)
        return found

    async def _loop(self) -> None:
        while True:
            self.last = await asyncio.to_thread(self._look)
            for finding in self.last.findings():
                self._report(finding)
            await asyncio.sleep(self._every_s)

    def _report(self, finding: Finding) -> None:
        before = self._reported.get(finding.topic)
        self._reported[finding.topic] = finding
        if finding == before:
            return
        if finding.level == "ok":
            if before is not None:
                log.info("%s: %s", finding.topic, finding.what)
            return
        level = logging.ERROR if finding.level == "missing" else logging.WARNING
        log.log(level, "%s: %s; %s", finding.topic, finding.what, finding.remedy)
