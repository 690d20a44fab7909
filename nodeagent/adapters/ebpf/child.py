"""The process that runs the kernel's BPF programs: reports their events to the daemon, and may be
killed at any time.

Started as `python -m nodeagent.adapters.ebpf.child CONFIG`, its standard input a socket to the
daemon (link.py); ends when the daemon does. The programs end with it, except refusals of GPUs.
Another process loads them (loaders/choose.py), so that this one stays small.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from nodeagent.adapters.ebpf.kernel import Kernel, LibbpfMissing
from nodeagent.adapters.ebpf.link import MAX_UNSENT_BYTES, frame, receive
from nodeagent.adapters.ebpf.loaders.choose import LoadFailed, Programs, load
from nodeagent.adapters.ebpf.watcher import Options, Watcher
from nodeagent.adapters.host.children import die_with_parent
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import KernelEvent
from sluicecommon.plain import read_plain, write_all_fields


class Child:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._writer: asyncio.StreamWriter | None = None
        self._unsent = 0

    async def run(self) -> int:
        connection = socket.socket(fileno=os.dup(0))
        reader, self._writer = await asyncio.open_connection(sock=connection)
        try:
            kernel = Kernel()
            programs = await load(self._options.loader, Path(self._options.prebuilt))
        except (LoadFailed, LibbpfMissing, OSError) as error:
            self._send({"failed": str(error)})
            await self._writer.drain()
            return 1
        watcher = Watcher(kernel, programs.fds, self._options, self._send_event)
        await watcher.start()
        self._send_status(watcher, programs)
        tasks = [
            asyncio.create_task(watcher.look_loop()),
            asyncio.create_task(watcher.audit_loop()),
            asyncio.create_task(self._status_loop(watcher, programs)),
            asyncio.create_task(self._serve(reader, watcher)),
        ]
        try:
            # The serving task ends with the daemon; any other by a defect, which ends this process.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            watcher.close()
        return 0

    def _send(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(frame(message))

    def _send_event(self, event: KernelEvent) -> None:
        assert self._writer is not None
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._unsent += 1
            return
        self._send({"event": type(event).__name__, "value": write_all_fields(event)})

    def _send_status(self, watcher: Watcher, programs: Programs) -> None:
        self._send(
            {
                "status": {
                    "loader": programs.loader,
                    "instead": programs.instead,
                    "problems": watcher.problems,
                    "denied": watcher.refused(),
                    "lost": watcher.lost() + self._unsent,
                    "trap_ns": watcher.costs.trap_ns if watcher.costs else None,
                    "nop_ns": watcher.costs.nop_ns if watcher.costs else None,
                }
            }
        )

    async def _status_loop(self, watcher: Watcher, programs: Programs) -> None:
        while True:
            await asyncio.sleep(self._options.status_s)
            watcher.find_devices()
            self._send_status(watcher, programs)

    async def _serve(self, reader: asyncio.StreamReader, watcher: Watcher) -> None:
        while True:
            try:
                message = await receive(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            if "watch" in message:
                watcher.watch(message["watch"])
            elif "libraries" in message:
                former = [read_plain(LibraryIdentity, one) for one in message["former"]]
                watcher.known_libraries(message["libraries"], former)
            else:
                self._send({"reply": message["ask"], **await self._answer(watcher, message)})

    async def _answer(self, watcher: Watcher, message: dict[str, Any]) -> dict[str, Any]:
        try:
            match message:
                case {"launches": True}:
                    return {"value": write_all_fields(watcher.launches())}
                case {"trace": int(pid), "on": bool(on)}:
                    await watcher.trace(pid, on)
                case {"deny": str(cgroup), "on": bool(on)}:
                    watcher.deny(cgroup, on)
                    return {"value": watcher.refused()}
                case _:
                    return {"error": "ValueError", "text": "unknown request"}
        except ProcessLookupError as error:
            return {"error": "ProcessLookupError", "text": str(error)}
        except (OSError, ValueError) as error:
            return {"error": "OSError", "text": str(error)}
        return {"value": None}


def main() -> int:
    die_with_parent()
    if os.getppid() == 1 and "--orphan" not in sys.argv:  # The daemon died before the call above.
        return 0
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options: Options = read_plain(Options, json.loads(sys.argv[1]))
    return asyncio.run(Child(options).run())


if __name__ == "__main__":
    sys.exit(main())
