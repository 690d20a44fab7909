"""Relays callers' connections to gRPC's own socket, so that each call's caller is known.

grpc-python reports neither the peer credentials of a Unix socket nor how many connections there
are. So a service accepts connections itself and relays their bytes to gRPC's socket in a directory
that only it can use, from a socket that is bound to a unique name there. `context.peer()` returns
that name, which leads back to the connection. Which connections are admitted, and how much they may
send, is decided by the service; TLS is gRPC's, so its bytes are relayed as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

MAX_EARLY_BYTES: Final = 1 << 20
"""Bytes buffered until gRPC's socket is connected; clients send at most 64 KiB before an answer."""
_CONNECTING: Final = "connecting"
_SLOW: Final = "gRPC reads too slowly"
_BUFFER: Final = memoryview(bytearray(64 << 10))
"""One buffer for all connections, since bytes are relayed before the next read. asyncio's default
would allocate 256 KiB for each read."""


@dataclass(eq=False, slots=True, kw_only=True)
class Relay:
    """One connection. A subclass may override `received`, `answered` and `ended`."""

    own: Path
    """Name of the socket that connects to gRPC's; used once."""
    target: Path
    """gRPC's socket."""
    outer: asyncio.Transport | None = None
    """The caller's end."""
    inner: asyncio.Transport | None = None
    """gRPC's end."""
    early: bytes = b""
    """Bytes received before gRPC's socket is connected: Python before 3.11.3 reads once from a
    transport that was paused in connection_made."""
    stopped_for: set[str] = field(default_factory=set)
    """Reasons for which reading is paused."""
    is_at_end: bool = False
    """True if the caller sends nothing more."""
    is_aborted: bool = False
    opening: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The connection as `context.peer()` names it."""
        return f"unix:{self.own}"

    def received(self, nbytes: int) -> None:
        """Called after bytes of the caller were relayed."""

    def answered(self) -> None:
        """Called after bytes of gRPC were relayed; the first come as soon as gRPC has accepted."""

    def ended(self) -> None:
        """Called once, when the caller's end is closed."""

    def stop(self, why: str) -> None:
        self.stopped_for.add(why)
        if self.outer is not None and not self.outer.is_closing():
            self.outer.pause_reading()

    def go_on(self, why: str) -> None:
        self.stopped_for.discard(why)
        if not self.stopped_for and self.outer is not None and not self.outer.is_closing():
            self.outer.resume_reading()

    def fileno(self) -> int:
        """File descriptor of the caller's end; -1 if it is closed."""
        outer = self.outer
        if outer is None or outer.is_closing():
            return -1
        fd: int = outer.get_extra_info("socket").fileno()
        return fd

    def abort(self) -> None:
        self.is_aborted = True
        for end in (self.outer, self.inner):
            if end is not None:
                end.abort()

    async def open(self) -> None:
        """Connect to gRPC's socket. If that fails, the connection is aborted."""
        inner: socket.socket | None = None
        try:
            inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            inner.setblocking(False)
            inner.bind(str(self.own))
            loop = asyncio.get_running_loop()
            try:
                await loop.sock_connect(inner, str(self.target))
            finally:
                self.own.unlink()  # Both ends know the name now, so the file is not needed.
            await loop.create_unix_connection(lambda: _GrpcEnd(self), sock=inner)
        except OSError as error:
            log.warning("cannot relay a connection to gRPC: %s", error)
            if inner is not None:
                inner.close()
            self.abort()


class _End(asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER


class CallerEnd(_End):
    """Protocol of the caller's end."""

    def __init__(self, admit: Callable[[asyncio.Transport], Relay | None]) -> None:
        """`admit` returns the relay of a new connection; None if it closed the connection."""
        self._admit = admit
        self._relay: Relay | None = None

    def connection_made(self, transport: Any) -> None:
        relay = self._relay = self._admit(transport)
        if relay is None:
            return
        relay.outer = transport
        if relay.is_aborted:
            transport.abort()
            return
        relay.stop(_CONNECTING)
        relay.opening = asyncio.get_running_loop().create_task(relay.open())

    def buffer_updated(self, nbytes: int) -> None:
        relay = self._relay
        if relay is None:
            return
        data = bytes(_BUFFER[:nbytes])
        if relay.inner is not None:
            relay.inner.write(data)
        elif len(relay.early) + len(data) <= MAX_EARLY_BYTES:
            relay.early += data
        else:
            relay.abort()
            return
        relay.received(nbytes)

    def eof_received(self) -> bool:
        if self._relay is not None:
            self._relay.is_at_end = True
            if self._relay.inner is not None:
                with contextlib.suppress(OSError):
                    self._relay.inner.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self._relay is not None:
            if self._relay.inner is not None:
                self._relay.inner.close()
            self._relay.ended()

    def pause_writing(self) -> None:
        if self._relay is not None and self._relay.inner is not None:
            self._relay.inner.pause_reading()

    def resume_writing(self) -> None:
        if self._relay is not None and self._relay.inner is not None:
            self._relay.inner.resume_reading()


class _GrpcEnd(_End):
    """Protocol of gRPC's end."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def connection_made(self, transport: Any) -> None:
        self._relay.inner = transport
        if self._relay.outer is None or self._relay.outer.is_closing():
            transport.abort()
            return
        transport.write(self._relay.early)
        self._relay.early = b""
        if self._relay.is_at_end:
            transport.write_eof()
        self._relay.go_on(_CONNECTING)

    def buffer_updated(self, nbytes: int) -> None:
        if self._relay.outer is not None:
            self._relay.outer.write(bytes(_BUFFER[:nbytes]))
            self._relay.answered()

    def connection_lost(self, error: Exception | None) -> None:
        if self._relay.outer is not None:
            self._relay.outer.close()

    def pause_writing(self) -> None:
        self._relay.stop(_SLOW)

    def resume_writing(self) -> None:
        self._relay.go_on(_SLOW)
