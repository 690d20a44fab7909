"""Keeps a running daemon's configuration as its files say: on SIGHUP, when a file changes, and by a
slow poll.

A file with mistakes changes nothing: the earlier configuration stays in force, and every mistake
is logged once. A mounted ConfigMap changes by a symbolic link beside the file, so the directories
are watched, and the file behind the link is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.reload import Loaded, Running, merge
from nodeagent.ports.files import DirectoryWatch, WatchDirectory
from nodeagent.ports.views import Samples
from nodeagent.settings.daemon import ConfigError
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

POLL_S: Final = 30.0
"""Interval of polling, for file systems without change events such as network ones. Seconds."""
SETTLE_S: Final = 0.2
"""Delay after the first change, because editors and installers write several times. Seconds."""

_Identity = tuple[int, int, int, int]


@dataclass(slots=True)
class ReloadFigures:
    """Figures for the metrics, since the daemon started."""

    reloads: int = 0
    """Readings that changed something."""
    problems: tuple[str, ...] = ()
    """Errors in the files as they are; the earlier configuration stays in use."""
    waiting: tuple[str, ...] = ()
    """Keys that only a restart brings."""


class Reloader:
    """Implements Endpoint."""

    def __init__(
        self,
        read: Callable[[], Loaded],
        loaded: Loaded,
        fatal: Callable[[BaseException], None],
        watch: WatchDirectory,
        poll_s: float = POLL_S,
    ) -> None:
        """`read` raises ConfigError."""
        self.on_change: list[Callable[[Running], None]] = []
        """Each is given the whole configuration, and is to take what it needs of it; it is called
        again with the same one now and then."""
        self.figures = ReloadFigures()
        self.running = _running(loaded)
        self._read = read
        self._background = BackgroundTasks(fatal)
        self._watch_directory = watch
        self._poll_s = poll_s
        self._paths = loaded.watched
        self._seen = _fingerprint(self._paths)
        self._warned = frozenset(loaded.kubelet.warnings)
        self._asked = False
        self._wake = asyncio.Event()
        self._watches: dict[Path, DirectoryWatch] = {}

    def counters(self) -> Samples:
        """Figures for the metrics."""
        return {
            m.CONFIG_VALID: float(not self.figures.problems),
            m.CONFIG_WAITING: len(self.figures.waiting),
        }

    async def start(self) -> None:
        self._background.spawn(self._loop(), "configuration reload")

    async def close(self) -> None:
        await self._background.close()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def request(self) -> None:
        """Read the files again, whether they look changed or not (SIGHUP)."""
        self._asked = True
        self._wake.set()

    async def _loop(self) -> None:
        while True:
            self._wake.clear()
            self._watch()
            if not self._asked and _fingerprint(self._paths) == self._seen:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._wake.wait()
            if not self._asked:
                if _fingerprint(self._paths) == self._seen:
                    continue
                await asyncio.sleep(SETTLE_S)
            await self.reload()

    async def reload(self) -> None:
        asked, self._asked = self._asked, False
        self._seen = _fingerprint(self._paths)
        try:
            loaded = await asyncio.to_thread(self._read)
            if loaded.refused:
                raise ConfigError(list(loaded.kubelet.problems))
        except ConfigError as error:
            if asked or tuple(error.problems) != self.figures.problems:
                for problem in error.problems:
                    log.error("configuration: rejected, the earlier one stays in use: %s", problem)
            self.figures.problems = tuple(error.problems)
            return
        self.figures.problems = ()
        self._paths = loaded.watched
        self._seen = _fingerprint(self._paths)
        merged = merge(self.running, _running(loaded))
        self.running = merged.running
        if merged.changed:
            self.figures.reloads += 1
            log.info("configuration: changed %s", ", ".join(merged.changed))
            for apply in self.on_change:
                apply(self.running)
        elif asked and not merged.waiting:
            log.info("configuration: unchanged")
        if merged.waiting and (asked or merged.waiting != self.figures.waiting):
            log.warning(
                "configuration: a restart is needed for %s (systemctl restart sluice; jobs keep"
                " running meanwhile)",
                ", ".join(merged.waiting),
            )
        self.figures.waiting = merged.waiting
        if self.running.kubelet.enabled:
            for warning in loaded.kubelet.warnings:
                if warning not in self._warned:
                    log.warning("%s", warning)
        self._warned = frozenset(loaded.kubelet.warnings)

    def _watch(self) -> None:
        """A watch for each directory a file, or the file behind its links, is in."""
        wanted = {path.parent for path in self._paths}
        wanted |= {path.resolve().parent for path in self._paths}
        for path, watch in list(self._watches.items()):
            if watch.lost or path not in wanted:
                watch.close()
                del self._watches[path]
        for path in wanted - self._watches.keys():
            with contextlib.suppress(OSError):  # not there, or no more watches: the poll remains
                self._watches[path] = self._watch_directory(path, self._wake.set)


def _running(loaded: Loaded) -> Running:
    return Running(loaded.settings, loaded.kubelet.config, loaded.health)


def _fingerprint(paths: Sequence[Path]) -> tuple[_Identity | None, ...]:
    return tuple(map(_identity, paths))


def _identity(path: Path) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
