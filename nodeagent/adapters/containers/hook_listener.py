"""The socket on which the container hook reports a new container's cgroup and waits until the
driver's limits are set for it. Only the host's root can reach it, because it is mounted into no
container.

The request is one line, `wall GRANT PID`, and the answer is `ok`, or `no` and a reason. The PID is
the host's, of the container's first process, as reported by the runtime; the daemon checks that it
belongs to the grant's pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from nodeagent.ports.clients import Refused
from nodeagent.units import GrantId

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "hook.sock"
LINE_BYTES: Final = 256
MAX_CONNECTIONS: Final = 64
"""Maximum connections at one time; a node starts no more containers at once, and further ones are
refused."""
LINE_S: Final = 5.0
_ASKED: Final = re.compile(rb"wall ([0-9A-Za-z-]{1,64}) ([1-9][0-9]{0,9})\n")
_CREDENTIALS: Final = struct.Struct("3i")


class HookListener:
    """An Endpoint of the daemon."""

    def __init__(
        self, runtime: Path, uid: int, enclose: Callable[[GrantId, int], Awaitable[None]]
    ) -> None:
        """`uid` may connect beside root. `enclose` raises Refused."""
        self._path = runtime / SOCKET_NAME
        self._allowed = frozenset({0, uid})
        self._enclose = enclose
        self._server: asyncio.Server | None = None
        self._callers = 0

    async def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(
                self._serve, str(self._path), limit=LINE_BYTES
            )
        finally:
            os.umask(before)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers += 1
        try:
            answer = await self._answer(reader, writer)
            writer.write(answer.encode()[:LINE_BYTES] + b"\n")
            await writer.drain()
        except OSError as error:  # It closed the connection.
            log.debug("container hook: %s", error)
        finally:
            self._callers -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        peer: socket.socket = writer.get_extra_info("socket")
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] not in self._allowed:
            return "no permission denied: only root may connect"
        if self._callers > MAX_CONNECTIONS:
            return f"no too many containers are starting (limit {MAX_CONNECTIONS})"
        try:
            async with asyncio.timeout(LINE_S):
                line = await reader.readline()
        except (TimeoutError, ValueError):
            line = b""
        asked = _ASKED.fullmatch(line)
        if asked is None:
            return "no expected `wall GRANT PID`"
        try:
            await self._enclose(GrantId(asked[1].decode()), int(asked[2]))
        except Refused as refused:
            return f"no {refused.reason}"
        return "ok"
