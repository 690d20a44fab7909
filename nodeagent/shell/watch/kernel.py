"""The daemon's side of the kernel watch: the processes it watches, the events it has reported, and
tracing for users."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Final

from nodeagent.core.metrics import catalogue as m
from nodeagent.ports.clients import Peer, RefusalKind, Refused
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import (
    AuditWindow,
    DeviceOpened,
    KernelEvent,
    KernelWatch,
    KernelWatchUnavailable,
    LaunchCounts,
    WatchState,
)
from nodeagent.ports.views import Finding, Samples, TracedDevice, TraceView
from nodeagent.shell.gpus.drivers import Drivers
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.reading import Grants
from nodeagent.units import NS_PER_S, Nanoseconds
from sluicecommon.metric import Metric

POLL_S: Final = 1.0
TRACE_INTERVALS_S: Final = (0.1, 60.0)
MAX_TRACES: Final = 16
_LOADED: Final = {"prebuilt": "prebuilt, loaded by libbpf", "bcc": "loaded by bcc"}


class KernelWatchManager:
    """An Endpoint of the node; `known` gives the libraries that processes may have mapped."""

    def __init__(
        self,
        watch: KernelWatch,
        grants: Grants,
        gpus: Gpus,
        known: Callable[[], frozenset[str]],
        drivers: Drivers,
        missing: Callable[[], list[Finding]],
        operator_uids: frozenset[int],
    ) -> None:
        self.watch = watch
        self._grants = grants
        self._gpus = gpus
        self._known = known
        self._drivers = drivers
        self._missing = missing
        self._libraries: tuple[frozenset[str], frozenset[LibraryIdentity]] | None = None
        self._events: Counter[str] = Counter()
        self._traces = 0
        self._task: asyncio.Task[None] | None = None
        self._operators = operator_uids
        watch.subscribe(self._count)

    async def start(self) -> None:
        await self.watch.start()
        self._task = asyncio.create_task(self._poll_loop())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.watch.close()

    async def _poll_loop(self) -> None:
        while True:
            self.watch.watch_processes(self._grants.tenant_pids() | self._seen_by_nvml())
            paths, host = await asyncio.to_thread(self._identify_drivers)
            self._drivers.remember(host)
            libraries = paths | self._drivers_of_grants(), host
            # The identities differ also if a driver was replaced by a file of the same name.
            if libraries != self._libraries:
                self._libraries = libraries
                self.watch.known_libraries(libraries[0], self._drivers.seen())
            await asyncio.sleep(POLL_S)

    def _seen_by_nvml(self) -> set[int]:
        return {process.pid for gpu in self._gpus.readings.values() for process in gpu.processes}

    def _identify_drivers(self) -> tuple[frozenset[str], frozenset[LibraryIdentity]]:
        paths = self._known()
        return paths, self._drivers.identities(paths)

    def _drivers_of_grants(self) -> frozenset[str]:
        """Driver libraries that our library replaces in grants; the caller of each grant named its
        own."""
        held = self._grants.live().values()
        return frozenset(one.record.driver_path for one in held if one.record.driver_path)

    # --- events of the watch ---

    def _count(self, event: KernelEvent) -> None:
        name = type(event).__name__
        if isinstance(event, DeviceOpened) and event.denied:
            name = "DeviceRefused"
        self._events[name] += 1
        if isinstance(event, AuditWindow):
            self._events["audited_driver"] += sum(one.driver for one in event.processes)
            self._events["audited_interposer"] += sum(one.shim for one in event.processes)

    def counters(self) -> Samples:
        """Values of the metrics; empty if eBPF is switched off."""
        status = self.watch.status()
        if status.state is WatchState.OFF:
            return {}
        counts = self._events
        found: dict[Metric, float | dict[str, float]] = {
            m.EBPF_UP: float(status.state is WatchState.RUNNING),
            m.EBPF_RESTARTS: status.restarts_total,
            m.EBPF_LOST: status.lost_total,
            m.EBPF_EVENTS: {
                "open": counts["DeviceOpened"],
                "refused": counts["DeviceRefused"],
                "exec": counts["ProcessExec"],
                "exit": counts["ProcessExit"],
                "foreign_library": counts["ForeignLibrary"],
                "altered_probe": counts["ProbeAltered"],
            },
            m.AUDIT_WINDOWS: counts["AuditWindow"],
            m.AUDIT_LAUNCHES: {
                "driver": counts["audited_driver"],
                "interposer": counts["audited_interposer"],
            },
        }
        if status.trap_ns is not None and status.nop_ns is not None:
            found[m.EBPF_PROBE] = {
                "driver": status.trap_ns / NS_PER_S,
                "interposer": status.nop_ns / NS_PER_S,
            }
        return found

    def findings(self) -> list[Finding]:
        """Findings for `sluice doctor`."""
        status = self.watch.status()
        if status.state is WatchState.OFF:
            return [Finding("ebpf", "ok", 'switched off: ebpf.enabled = "off"')]
        if status.state is WatchState.STARTING:
            return [Finding("ebpf", "ok", "the programs are being loaded")]
        if status.state is WatchState.RUNNING:
            costs = ""
            if status.trap_ns is not None and status.nop_ns is not None:
                costs = (
                    f"; a launch costs {status.nop_ns / 1000:.2f} us more while it is traced,"
                    f" {status.trap_ns / 1000:.1f} us while it is audited"
                )
            loaded = _LOADED.get(status.loader, status.loader)
            if status.instead:
                loaded += f" because {status.instead.splitlines()[0]}"  # the log has the rest
            found = [Finding("ebpf", "ok", f"runs, {loaded}{costs}")]
            if status.reason:
                found.append(Finding("ebpf functions", "warning", status.reason, status.remedy))
            return found
        missing = self._missing()
        return missing or [
            Finding(
                "ebpf",
                "warning",
                status.reason,
                status.remedy or "it is restarted; see the daemon's log",
            )
        ]

    # --- tracing ---

    async def trace(
        self, peer: Peer, pid: int, interval_s: float
    ) -> AsyncGenerator[TraceView, None]:
        """Yield the launch counts of one process every `interval_s`. Raises Refused. Only operators
        may trace: probes are active in every process that maps the same library, so a trace also
        slows other tenants."""
        if peer.uid not in self._operators:
            raise Refused(
                RefusalKind.DENIED,
                "only root may trace: it slows the launches of every job that shares our library",
            )
        if self._traces >= MAX_TRACES:
            raise Refused(RefusalKind.EXHAUSTED, f"{MAX_TRACES} traces run already")
        low, high = TRACE_INTERVALS_S
        interval_s = min(high, max(low, interval_s))
        self._traces += 1
        attached = False
        try:
            await self.watch.trace(pid, True)
            attached = True
            while True:
                reading = await self.watch.launches()
                counts = tuple(one for one in reading.counts if one.pid == pid)
                yield self._traced(reading.at_ns, pid, counts)
                if counts and all(one.ended for one in counts):
                    return
                await asyncio.sleep(interval_s)
        except ProcessLookupError as error:
            raise Refused(RefusalKind.NOT_FOUND, str(error)) from error
        except (KernelWatchUnavailable, OSError) as error:
            raise Refused(
                RefusalKind.UNAVAILABLE, f"tracing is not available: {error}; see `sluice doctor`"
            ) from error
        finally:
            self._traces -= 1
            if attached:
                with contextlib.suppress(OSError):
                    await self.watch.trace(pid, False)

    def _traced(self, at_ns: Nanoseconds, pid: int, counts: tuple[LaunchCounts, ...]) -> TraceView:
        grant = self._grants.grant_of(pid)
        held = self._grants.grant(grant)
        return TraceView(
            at_ns,
            tuple(
                TracedDevice(
                    one.device,
                    one.launches,
                    one.copies,
                    one.cost_ns,
                    one.waited_ns,
                    one.wait_histogram,
                    one.gap_histogram,
                    one.ended,
                )
                for one in sorted(counts, key=lambda one: one.device)
            ),
            grant or "",
            held.record.name if held is not None else "",
            self.watch.status().nop_ns,
        )
