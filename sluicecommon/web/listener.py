"""Listening, limits and TLS of the HTTP servers for /metrics, the probes and the page.

aiohttp answers the requests; it is loaded when the first client connects. Limits that aiohttp's own
sites do not have are enforced here: connections in all and per address, counted from before the TLS
handshake, and the time and the bytes of each connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluicecommon.web.clients import Client, Clients

log = logging.getLogger(__name__)

_END_OF_HEAD: Final = b"\r\n\r\n"
SHUTDOWN_S: Final = 5.0
"""Longest wait for a client that does not answer the TLS close_notify."""
BACKLOG: Final = 256
"""Connections that the kernel completes before they are accepted."""
ACCEPTS_A_PASS: Final = 16
"""Connections accepted in one pass of the event loop. Each of them may be a TLS handshake of a
millisecond in the next pass, which other callbacks wait for."""
TLS_BUFFER_BYTES: Final = 32 << 10
"""Read buffer of a TLS connection, which exists from before the handshake on. A TLS record has at
most 16 KiB; asyncio's own size is 256 KiB."""
SSLProtocol.max_size = TLS_BUFFER_BYTES


class Certificate:
    """A TLS server's certificate, which is read again when its files change."""

    def __init__(self, certificate: Path, key: Path, authority: Path | None = None) -> None:
        """`authority` is the CA of optional client certificates; others are refused. Raises
        OSError, of which ssl.SSLError is a subclass."""
        self._files = (certificate, key)
        self._authority = authority
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded = self._stamp()
        self._load()

    def refresh(self) -> None:
        """Use changed files for later handshakes; unreadable ones leave the old certificate."""
        try:
            stamp = self._stamp()
            if stamp != self._loaded:
                self._loaded = stamp
                self._load()
                log.info("%s: the changed certificate is in use", self._files[0])
        except OSError as error:
            log.warning(
                "%s: the changed certificate cannot be read, the previous one stays in use: %s",
                self._files[0],
                error,
            )

    def _load(self) -> None:
        self.context.load_cert_chain(*self._files)
        if self._authority is not None:
            self.context.load_verify_locations(self._authority)
            self.context.verify_mode = ssl.CERT_OPTIONAL

    def _stamp(self) -> tuple[int, ...]:
        files = self._files if self._authority is None else (*self._files, self._authority)
        return tuple(os.stat(path).st_mtime_ns for path in files)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection; None is no limit."""

    handshake_s: float
    """Longest TLS handshake."""
    connection_s: float | None = None
    """Longest connection, the handshake included."""
    request_bytes: int | None = None
    """Most bytes that a client may send over a connection."""
    first_s: float | None = None
    """Time within which the head of the first request must have arrived, the handshake included."""


def bind(setting: str, address: tuple[str, int]) -> socket.socket:
    """A TCP socket bound to an address and not yet listening.

    Raises OSError, whose text begins with `setting`.
    """
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        reason = os.strerror(error.errno or 0)
        raise OSError(f"{setting}: cannot listen on {host}:{port}: {reason}") from error
    return bound


def lengthen_backlog(server: asyncio.Server, backlog: int) -> None:
    """Set the kernel's listen backlog, since asyncio uses its `backlog` as the number of
    connections to accept at once, too."""
    for one in server.sockets:
        with socket.socket(fileno=os.dup(one.fileno())) as same:
            same.listen(backlog)


class Listener:
    """Accepts connections and gives each, within its limits, a protocol that `make` returns."""

    def __init__(
        self,
        make: Callable[[Client], Awaitable[asyncio.Protocol]],
        clients: Clients,
        limits: Limits,
        certificate: Certificate | None = None,
    ) -> None:
        self.make = make
        self.clients = clients
        self.limits = limits
        self.certificate = certificate
        self.opening: set[asyncio.Task[None]] = set()
        """Connections whose handshake is under way."""
        self._server: asyncio.Server | None = None

    async def start(self, setting: str, address: tuple[str, int]) -> None:
        """Listen on an address. Raises OSError, whose text begins with `setting`."""
        try:
            self._server = await self._loop.create_server(
                self._connection, *address, backlog=ACCEPTS_A_PASS
            )
            lengthen_backlog(self._server, BACKLOG)
        except OSError as error:
            host, port = address
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(f"{setting}: cannot listen on {host}:{port}: {reason}") from error

    async def start_on(self, bound: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError."""
        self._server = await self._loop.create_server(
            self._connection, sock=bound, backlog=ACCEPTS_A_PASS
        )
        lengthen_backlog(self._server, BACKLOG)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self)


class _Connection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol, which it creates after the handshake."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._client: Client | None = None
        self._transport: asyncio.Transport | None = None
        self._protocol: asyncio.Protocol | None = None
        self._early = bytearray()
        """Bytes of one read that came with the end of the handshake, before `_open` went on."""
        self._tail = b""
        """The last bytes received, until the end of the request's head is found."""
        self._received = 0
        self._timeout: asyncio.TimerHandle | None = None
        self._first: asyncio.TimerHandle | None = None
        """Timer that ends the connection if the head of no request arrives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("",)
        # abort() and not close(), which would wait for a client that does not read.
        self._client = self._listener.clients.enter(str(peer[0]), transport.abort)
        transport.pause_reading()  # A handshake's first bytes must wait for start_tls.
        loop, first_s = asyncio.get_running_loop(), self._listener.limits.first_s
        if first_s is not None:
            self._first = loop.call_later(first_s, transport.abort)
        task = loop.create_task(self._open(transport))
        self._listener.opening.add(task)
        task.add_done_callback(self._listener.opening.discard)

    async def _open(self, transport: asyncio.Transport) -> None:
        listener, loop = self._listener, asyncio.get_running_loop()
        try:
            if self._client is None:
                return
            protocol = await listener.make(self._client)
            if listener.limits.connection_s is not None:
                self._timeout = loop.call_later(listener.limits.connection_s, transport.abort)
            if listener.certificate is not None:
                # Not create_server(ssl=…), which would count a client only after its handshake.
                listener.certificate.refresh()
                secured = await loop.start_tls(
                    transport,
                    self,
                    listener.certificate.context,
                    server_side=True,
                    ssl_handshake_timeout=listener.limits.handshake_s,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
                if secured is None:
                    raise ConnectionAbortedError
                self._transport = secured
            else:
                transport.resume_reading()
        except OSError as error:  # The client is slow, gone, or speaks no TLS.
            # start_tls's frame refers to the future that refers to this exception, and to the
            # buffers of the connection: all of it would be kept for the cycle collector.
            error.__traceback__ = None
            transport.abort()
            self._forget()
            return
        except BaseException:
            transport.abort()
            self._forget()
            raise
        if self._client is None or self._transport is None or self._transport.is_closing():
            self._forget()
            return
        self._protocol = protocol
        protocol.connection_made(self._transport)
        if self._early:
            protocol.data_received(bytes(self._early))
            self._early.clear()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        most = self._listener.limits.request_bytes
        if most is not None and self._received > most:
            self._abort()
            return
        if self._client is not None and not self._client.asked:
            self._tail += data
            if _END_OF_HEAD in self._tail:
                self._listener.clients.mark(self._client, asked=True)
                if self._first is not None:
                    self._first.cancel()
                    self._first = None
            self._tail = self._tail[-len(_END_OF_HEAD) :]
        if self._protocol is not None:
            self._protocol.data_received(data)
        else:
            self._early += data

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._protocol is not None else None

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        """Stop counting the connection."""
        for timer in (self._timeout, self._first):
            if timer is not None:
                timer.cancel()
        if self._client is not None:
            self._listener.clients.leave(self._client)
            self._client = None
