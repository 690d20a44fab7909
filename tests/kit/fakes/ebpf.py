"""A KernelWatch without a kernel: tests tell the events; what was asked for is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import (
    KernelEvent,
    KernelWatchUnavailable,
    LaunchCounts,
    LaunchReading,
    WatchState,
    WatchStatus,
)
from nodeagent.units import Nanoseconds


class FakeKernelWatch:
    def __init__(self) -> None:
        self.current = WatchStatus(WatchState.OFF)
        self.watched: frozenset[int] = frozenset()
        self.libraries: frozenset[str] = frozenset()
        self.former: frozenset[LibraryIdentity] = frozenset()
        self.counts: tuple[LaunchCounts, ...] = ()
        self.traced: Counter[int] = Counter()
        self._denied: set[str] = set()
        self._calls: list[Callable[[KernelEvent], None]] = []

    def tell(self, event: KernelEvent) -> None:
        for call in self._calls:
            call(event)

    def die(self, reason: str) -> None:
        """Simulate a killed child; start() brings it back."""
        self.current = WatchStatus(
            WatchState.DOWN, reason, restarts_total=self.current.restarts_total + 1
        )

    def status(self) -> WatchStatus:
        return self.current

    def subscribe(self, call: Callable[[KernelEvent], None]) -> None:
        self._calls.append(call)

    def watch_processes(self, pids: Collection[int]) -> None:
        self.watched = frozenset(pids)

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        self.libraries, self.former = frozenset(paths), frozenset(former)

    async def launches(self) -> LaunchReading:
        self._check()
        return LaunchReading(Nanoseconds(0), self.counts)

    async def trace(self, pid: int, on: bool) -> None:
        self._check()
        self.traced[pid] += 1 if on else -1
        if self.traced[pid] <= 0:
            del self.traced[pid]

    async def deny_opens(self, cgroup: str, denied: bool) -> None:
        self._check()
        if denied:
            self._denied.add(cgroup)
        else:
            self._denied.discard(cgroup)

    def denied(self) -> frozenset[str]:
        return frozenset(self._denied)

    async def start(self) -> None:
        self.current = WatchStatus(
            WatchState.RUNNING, loader="fake", restarts_total=self.current.restarts_total
        )

    async def close(self) -> None:
        self.current = WatchStatus(WatchState.OFF)

    def _check(self) -> None:
        if self.current.state is not WatchState.RUNNING:
            raise KernelWatchUnavailable(self.current.reason or "eBPF is off")
