"""A KernelWatch through a child process: BPF programs are loaded, attached and read there. The
child is restarted with growing pauses when it ends, and never blocks the daemon.

The daemon's requests (watched processes, known libraries, refused cgroups, traced processes) are
kept here and sent again to each new child.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.link import frame, receive
from nodeagent.adapters.ebpf.pins import BPFFS, leave
from nodeagent.adapters.ebpf.watcher import Options
from nodeagent.adapters.host.children import python_child
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import (
    AuditWindow,
    DeviceOpened,
    ForeignLibrary,
    KernelEvent,
    KernelWatchUnavailable,
    LaunchReading,
    ProbeAltered,
    ProcessExec,
    ProcessExit,
    WatchState,
    WatchStatus,
)
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
SETTLED_S: Final = 60.0
"""Seconds; after a child that ran this long the next pause is the first again."""
START_DEADLINE_S: Final = 90.0
SILENT_S: Final = 15.0
"""Seconds; a child sends its status every second, and one that is silent this long is killed."""
ASK_DEADLINE_S: Final = 10.0
SWITCHED_OFF: Final = 'eBPF is switched off: ebpf.enabled = "off"'
EVENTS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        DeviceOpened,
        ProcessExec,
        ProcessExit,
        ForeignLibrary,
        ProbeAltered,
        AuditWindow,
    )
}
_ERRORS: Final[dict[str, type[Exception]]] = {
    "ProcessLookupError": ProcessLookupError,
    "OSError": OSError,
    "ValueError": ValueError,
}


class ChildFailed(Exception):
    """This child cannot be used any more; the text gives the reason."""


class NoKernelWatch:
    """eBPF is off: there are no events, and every request fails with that reason."""

    def status(self) -> WatchStatus:
        return WatchStatus(WatchState.OFF)

    def subscribe(self, call: Callable[[KernelEvent], None]) -> None:
        return None

    def watch_processes(self, pids: Collection[int]) -> None:
        return None

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        return None

    async def launches(self) -> LaunchReading:
        raise KernelWatchUnavailable(SWITCHED_OFF)

    async def trace(self, pid: int, on: bool) -> None:
        raise KernelWatchUnavailable(SWITCHED_OFF)

    async def deny_opens(self, cgroup: str, denied: bool) -> None:
        raise KernelWatchUnavailable(SWITCHED_OFF)

    def denied(self) -> frozenset[str]:
        return frozenset()

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None


class ChildKernelWatch:
    def __init__(self, options: Options, silent_s: float = SILENT_S) -> None:
        self._options = options
        self._silent_s = silent_s
        self._status = WatchStatus(WatchState.DOWN, "not started")
        self._lost_before = 0
        self._calls: list[Callable[[KernelEvent], None]] = []
        self._pids: frozenset[int] = frozenset()
        self._libraries: dict[str, Any] = {"libraries": [], "former": []}
        """The message for the child."""
        self._wanted_denied: set[str] = set()
        self._to_allow: set[str] = set()
        self._denied: frozenset[str] = frozenset()
        self._traced: Counter[int] = Counter()
        self._questions = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None

    # --- the port ---

    def status(self) -> WatchStatus:
        return self._status

    def subscribe(self, call: Callable[[KernelEvent], None]) -> None:
        self._calls.append(call)

    def watch_processes(self, pids: Collection[int]) -> None:
        if self._pids != frozenset(pids):
            self._pids = frozenset(pids)
            self._send({"watch": sorted(self._pids)})

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        plain = [write_all_fields(one) for one in former]
        self._libraries = {"libraries": sorted(paths), "former": plain}
        self._send(self._libraries)

    async def launches(self) -> LaunchReading:
        reading: LaunchReading = read_plain(LaunchReading, await self._request({"launches": True}))
        return reading

    async def trace(self, pid: int, on: bool) -> None:
        if on:
            await self._request({"trace": pid, "on": True})
            self._traced[pid] += 1
        elif self._traced[pid] > 0:
            self._traced[pid] -= 1
            self._traced += Counter()  # Drops the entries at zero.
            with contextlib.suppress(KernelWatchUnavailable):
                await self._request({"trace": pid, "on": False})

    async def deny_opens(self, cgroup: str, denied: bool) -> None:
        if denied:
            self._to_allow.discard(cgroup)
        else:  # Kept for the next child, which takes refusals over.
            self._wanted_denied.discard(cgroup)
            self._to_allow.add(cgroup)
        self._denied = frozenset(await self._request({"deny": cgroup, "on": denied}))
        if denied:
            self._wanted_denied.add(cgroup)
        else:
            self._to_allow.discard(cgroup)

    def denied(self) -> frozenset[str]:
        return self._denied

    async def start(self) -> None:
        """Start the child. Returns at once; the result shows in status()."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervisor
            # The child was killed, so it could not do this.
            await asyncio.to_thread(leave, BPFFS / self._options.pins)
        self._status = replace(self._status, state=WatchState.OFF, reason="", pid=None)

    # --- the child ---

    async def _supervise(self) -> None:
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            missing = await asyncio.to_thread(
                ebpf_host.missing, self._options.loader, Path(self._options.prebuilt)
            )
            if missing:
                reason = "; ".join(finding.what for finding in missing)
                if reason != self._status.reason:
                    log.warning("no eBPF: %s; see `sluice doctor`", reason)
                self._down(reason, missing[0].remedy, counts=False)
                await asyncio.sleep(LONGEST_PAUSE_S)  # Checking again is cheap.
                continue
            try:
                await self._live()
            except ChildFailed as error:
                if loop.time() - began_s > SETTLED_S:
                    pause_s = FIRST_PAUSE_S
                log.warning("%s; restarting it in %g s", error, pause_s)
                self._down(str(error), "see the daemon's log", counts=True)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _down(self, reason: str, remedy: str, *, counts: bool) -> None:
        self._lost_before = self._status.lost_total
        self._denied = frozenset()
        self._status = replace(
            self._status,
            state=WatchState.DOWN,
            reason=reason,
            remedy=remedy,
            pid=None,
            restarts_total=self._status.restarts_total + counts,
        )
        for question in self._open.values():
            if not question.done():
                question.set_exception(KernelWatchUnavailable(reason))
        self._open.clear()

    async def _live(self) -> None:
        """Run one child from its start to its end. Raises ChildFailed."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = await asyncio.create_subprocess_exec(
                    *python_child(
                        "nodeagent.adapters.ebpf.child", json.dumps(write_all_fields(self._options))
                    ),
                    stdin=theirs.fileno(),
                )
        except OSError as error:
            ours.close()
            raise ChildFailed(f"the eBPF child cannot be started: {error}") from error
        child = self._child
        self._status = replace(
            self._status, state=WatchState.STARTING, reason="", remedy="", pid=child.pid
        )
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            await self._converse(reader, writer)
        finally:
            self._writer = None
            writer.close()
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await child.wait()
            self._child = None

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        deadline_s = START_DEADLINE_S
        while True:
            try:
                async with asyncio.timeout(deadline_s):
                    message = await receive(reader)
            except TimeoutError:
                raise ChildFailed(f"the eBPF child was silent for {deadline_s:g} s") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise ChildFailed("the eBPF child ended") from None
            except ValueError as error:
                raise ChildFailed(f"the eBPF child sent a malformed message: {error}") from error
            if "failed" in message:
                raise ChildFailed(f"eBPF does not work here: {message['failed']}")
            if "status" in message:
                deadline_s = self._silent_s
                if self._writer is None:
                    self._writer = writer
                    self._repeat()
                self._take_status(message["status"])
            elif "event" in message:
                event = read_plain(EVENTS[message["event"]], message["value"])
                for call in self._calls:
                    call(event)
            else:
                self._take_reply(message)

    def _take_status(self, message: dict[str, Any]) -> None:
        if self._status.state is not WatchState.RUNNING:
            log.info("eBPF is running (%s)", "; ".join(message["problems"]) or "all functions")
            if message["instead"]:
                log.info("eBPF was loaded by %s: %s", message["loader"], message["instead"])
        self._denied = frozenset(message["denied"])
        self._status = replace(
            self._status,
            state=WatchState.RUNNING,
            loader=message["loader"],
            instead=message["instead"],
            reason="; ".join(message["problems"]),
            trap_ns=message["trap_ns"],
            nop_ns=message["nop_ns"],
            lost_total=self._lost_before + message["lost"],
        )

    def _repeat(self) -> None:
        """Send the requests of earlier children again."""
        self._send({"watch": sorted(self._pids)})
        self._send(self._libraries)
        for cgroup in sorted(self._wanted_denied):
            self._send({"ask": 0, "deny": cgroup, "on": True})
        for cgroup in sorted(self._to_allow):
            self._send({"ask": 0, "deny": cgroup, "on": False})
        self._to_allow.clear()
        for pid, times in self._traced.items():
            for _ in range(times):
                self._send({"ask": 0, "trace": pid, "on": True})

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(frame(message))

    async def _request(self, message: dict[str, Any]) -> Any:
        """Send a request and return its answer. Raises KernelWatchUnavailable, or the child's
        error."""
        if self._writer is None:
            raise KernelWatchUnavailable(self._status.reason or "eBPF is starting")
        number = next(self._questions)
        question: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[number] = question
        self._send({"ask": number, **message})
        try:
            async with asyncio.timeout(ASK_DEADLINE_S):
                return await question
        except TimeoutError:
            raise KernelWatchUnavailable(
                f"the eBPF child timed out after {ASK_DEADLINE_S:g} s"
            ) from None
        finally:
            self._open.pop(number, None)

    def _take_reply(self, message: dict[str, Any]) -> None:
        question = self._open.pop(message["reply"], None)
        if question is None or question.done():
            if "error" in message:
                log.warning("eBPF: %s", message["text"])
            return
        if "error" in message:
            kind = _ERRORS.get(message["error"], OSError)
            question.set_exception(kind(message["text"]))
        else:
            question.set_result(message["value"])
