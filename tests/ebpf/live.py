"""A KernelWatch with its real child, its event loop in a thread, so that tests can be plain functions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nodeagent import native
from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.pins import BPFFS
from nodeagent.adapters.ebpf.watch import SILENT_S, ChildKernelWatch
from nodeagent.adapters.ebpf.watcher import Options
from nodeagent.adapters.processes.cgroups import unified_root
from nodeagent.ports.telemetry import KernelEvent, WatchState
from nodeagent.units import NS_PER_S
from tests.kit.node import until
from tests.kit.places import MESON

T = TypeVar("T")
E = TypeVar("E")

OPENER = MESON / "tests" / "opener"
MEDDLER = MESON / "tests" / "meddler"
STAND_IN = "1:5"
"""/dev/zero in the place of a GPU: nothing in our programs knows more of a device than its numbers."""
STAND_IN_PATH = "/dev/zero"
OPTIONS = Options(
    STAND_IN,
    audit_interval_s=2.0,
    audit_window_s=0.1,
    audit_budget_ratio=0.05,
    loader="auto",
    prebuilt=str(native.locate().bpf_object),
    pins=f"sluice-test-{os.getpid()}",
)

_MISSING = ebpf_host.missing()
needs_ebpf = pytest.mark.skipif(
    bool(_MISSING),
    reason="THE KERNEL'S WATCH IS NOT TESTED HERE: "
    + "; ".join(f"{finding.what} ({finding.remedy})" for finding in _MISSING),
)


LOADERS = [
    pytest.param(
        loader,
        id=loader,
        marks=pytest.mark.skipif(
            bool(lacks := ebpf_host.missing(loader)),
            reason=f"NOT TESTED WITH THE LOADER {loader}: "
            + "; ".join(f"{finding.what} ({finding.remedy})" for finding in lacks),
        ),
    )
    for loader in ("prebuilt", "bcc")
]
"""Parameters for tests that run with each loader; the others take the loader that `auto` takes."""


class LiveWatch:
    def __init__(self, options: Options = OPTIONS, silent_s: float = SILENT_S) -> None:
        self.events: list[tuple[int, KernelEvent]] = []
        """Events, each with CLOCK_MONOTONIC of its arrival."""
        self._pins = options.pins
        self.watch = ChildKernelWatch(options, silent_s)
        self.watch.subscribe(lambda event: self.events.append((time.monotonic_ns(), event)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def begin(self) -> None:
        self._thread.start()
        self.call(self.watch.start())

    def start(self) -> None:
        self.begin()
        self.until_running()

    def until_running(self) -> None:
        until("the programs run", lambda: self.watch.status().state is WatchState.RUNNING, 60)

    def call(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    def say(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the port that is not a coroutine."""

        async def said() -> None:
            call(*arguments)

        self.call(said())

    def found(self, kind: type[E], which: Callable[[E], bool] = lambda event: True) -> list[E]:
        return [event for _, event in self.events if isinstance(event, kind) and which(event)]

    def wait(
        self, kind: type[E], which: Callable[[E], bool] = lambda event: True, deadline_s: float = 60
    ) -> E:
        return until(
            f"the kernel tells of a {kind.__name__}", lambda: self.found(kind, which), deadline_s
        )[0]

    def delay_s(self, event: Any) -> float:
        """Delay from the kernel's time stamp to our reading of the event, in seconds."""
        arrived = next(at for at, one in self.events if one is event)
        return (arrived - int(event.at_ns)) / NS_PER_S

    def close(self) -> None:
        self.call(self.watch.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        with contextlib.suppress(OSError):  # something is refused still, for the next one to find
            (BPFFS / self._pins).rmdir()


@contextlib.contextmanager
def live(options: Options = OPTIONS) -> Iterator[LiveWatch]:
    watch = LiveWatch(options)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()


class Opener:
    """tests/programs/opener.c, in a cgroup when asked."""

    def __init__(self, way: str, cgroup: Path | None = None, path: str = STAND_IN_PATH) -> None:
        self.process = subprocess.Popen(
            [OPENER, way, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(self.process.pid))

    @property
    def pid(self) -> int:
        return self.process.pid

    def open(self) -> int:
        """The errno; 0: it is open."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the opener ended"
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def cgroup(name: str) -> Iterator[Path]:
    """A cgroup of its own in the unified hierarchy."""
    root = unified_root()
    assert root is not None
    path = root / f"sluice-test-{os.getpid()}-{name}"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        for directory, _, _ in os.walk(path, topdown=False):
            until(f"{directory} is empty and gone", lambda d=directory: os.rmdir(d) is None)


def relative(path: Path) -> str:
    root = unified_root()
    assert root is not None
    return f"/{path.relative_to(root)}"
