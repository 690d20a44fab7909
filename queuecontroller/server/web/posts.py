"""A server for the subset of HTTP/1.1 that API servers and schedulers use: POST with a length, one
request at a time over keep-alive connections.

A scheduler waits for two such answers before it schedules its next pod, so the cost of a request
here is added to every pod. Bytes are therefore parsed in the protocol's callback, and an answer
that does not wait is written at once, without a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from sluicecommon.web.clients import Client, Clients
from sluicecommon.web.listener import Certificate as OwnCertificate
from sluicecommon.web.listener import Limits, Listener

ALL_BYTES: Final = 128 << 20
"""Limit of the bytes received of all requests at a time; announced bytes that have not arrived do
not count."""
LONGEST_HEAD_BYTES: Final = 16 << 10
READ_S: Final = 20.0
"""Timeout of reading a request; the API server's own timeout is at most 30."""
IDLE_S: Final = 180.0
"""Timeout of idle connections. Go's clients close theirs after 90, and the client should close
first."""
FIRST_S: Final = 10.0
"""Timeout of the TLS handshake and the head of the first request together."""
SWEEP_S: Final = 1.0
LINGER_S: Final = 1.0
"""Time in which data of a refused client is still read, so that it can receive the answer."""
CLOSING_S: Final = 5.0
LAST_READS: Final = 3
"""Turns of the event loop in which requests that have arrived are read before connections are
closed."""
MAX_SILENT: Final = 128
"""Limit of connections that have sent no request yet, each of which costs 300 KiB over TLS."""
MAX_CONNECTIONS: Final = 1024
MAX_PER_ADDRESS: Final = 512
_END: Final = b"\r\n\r\n"
_log: Final = logging.getLogger(__name__)
Certificate = Mapping[str, Any]
"""A verified client certificate in `ssl`'s form, with its checksum."""
SHA256: Final = "sha256"


@dataclass(frozen=True, slots=True)
class Request:
    headers: Mapping[bytes, bytes]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    status: int = 200
    kind: bytes = b"application/json"


Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]


def refused(status: int, why: str) -> Response:
    return Response(f"{why}\n".encode(), status, b"text/plain; charset=utf-8")


@dataclass(frozen=True, slots=True)
class Route:
    handle: Handler
    """Handler of a request; an exception is a defect, answered with 500 and logged."""
    largest_bytes: int
    why_not: Callable[[Certificate], str] = lambda certificate: ""
    """The reason why a client with this certificate (empty if none) may not call, empty if it may;
    called before the body is read."""


class PostServer:
    def __init__(
        self,
        routes: Mapping[str, Route],
        certificate: OwnCertificate | None,
        setting: str = "posts",
    ) -> None:
        """`routes` by path; `certificate` is None on the loopback; `setting` names the address in
        error texts."""
        self.serve(routes)
        self.bytes_of: Counter[str] = Counter()
        """Bytes of requests that are being read or answered, by origin."""
        self.clients = Clients(MAX_CONNECTIONS, MAX_PER_ADDRESS, most_silent=MAX_SILENT)
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.setting = setting
        limits = Limits(FIRST_S, first_s=FIRST_S)
        self._listener = Listener(self.protocol, self.clients, limits, certificate)
        self._sweeping: asyncio.Task[None] | None = None
        self.connections_total = 0
        self.drains = False
        """True once each connection is closed after its next answer."""

    async def start(self, host: str, port: int) -> None:
        """Start to listen. Raises OSError if the address is in use."""
        await self._listener.start(self.setting, (host, port))
        self._sweeping = asyncio.create_task(self._sweep())

    def serve(self, routes: Mapping[str, Route]) -> None:
        """Serve these routes from the next request on."""
        self.routes = MappingProxyType({path.encode(): one for path, one in routes.items()})

    async def protocol(self, client: Client) -> asyncio.Protocol:
        """A protocol for one connection."""
        return _Connection(self, client, asyncio.get_running_loop())

    @property
    def bytes(self) -> int:
        return self.bytes_of.total()

    def is_too_much(self, origin: str, more: int) -> bool:
        """True if more bytes exceed the limit; one origin may use half of it, so that there is room
        for another."""
        of_it = self.bytes_of[origin] + more
        return of_it > ALL_BYTES // 2 or self.bytes + more > ALL_BYTES

    @property
    def port(self) -> int:
        return self._listener.port

    def drain(self) -> None:
        """Close each connection after its next answer, which tells the client so: it does not send
        a request on a connection that is being closed. New connections are still accepted."""
        self.drains = True

    async def close(self) -> None:
        """Close all connections; requests in progress are answered within CLOSING_S."""
        self.drain()
        self._listener.stop()
        for _ in range(LAST_READS):
            await asyncio.sleep(0)
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=CLOSING_S)
            for one in late:
                one.cancel()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._look()

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.look(now_s)


class _Connection(asyncio.Protocol):
    def __init__(self, server: PostServer, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._client = client
        self._origin = client.origin
        self._certificate: Certificate = {}
        self._buffer = bytearray()
        self._route: Route | None = None
        """Route of the request that is being read."""
        self._headers: dict[bytes, bytes] = {}
        self._length = 0
        self._counted = 0
        """Bytes of it counted in `bytes_of`."""
        self._keeps = True
        self._answering = False
        self._refused = False
        self._full = False
        """True while the client does not read its answers."""
        self._since_s = loop.time()
        """Time at which the current state began."""

    # -- callbacks of asyncio ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if shown := transport.get_extra_info("peercert"):
            whole = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            self._certificate = {**shown, SHA256: hashlib.sha256(whole).hexdigest()}
        self._server.connections.add(self)
        self._server.connections_total += 1

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        if not self._answering:
            self._done()

    def pause_writing(self) -> None:
        self._full, self._since_s = True, self._loop.time()

    def resume_writing(self) -> None:
        self._full = False
        self._go()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._buffer and self._route is None:
            self._since_s = self._loop.time()
        self._buffer += data
        if self._route is not None and not self._count():
            return
        if self._answering or self._full:
            if len(self._buffer) > LONGEST_HEAD_BYTES and self._transport is not None:
                self._transport.pause_reading()
            return
        self._go()

    # -- reading ----------------------------------------------------------------------------------

    def _go(self) -> None:
        """Process all complete requests in the buffer."""
        while not (self._answering or self._full or self._refused or self._transport is None):
            if self._route is None:
                if not self._buffer or not self._read_head():
                    return
            elif len(self._buffer) >= self._length:
                self._answer(self._route)
            else:
                return

    def _read_head(self) -> bool:
        """Parse the head of a request; returns False if it is incomplete or refused."""
        end = self._buffer.find(_END, 0, LONGEST_HEAD_BYTES)
        if end < 0:
            if len(self._buffer) >= LONGEST_HEAD_BYTES:
                self._refuse(431, f"a head of more than {LONGEST_HEAD_BYTES} bytes")
            return False
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + len(_END)]
        words = first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return self._refuse(400, "not an HTTP/1.1 request")
        headers: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            low = name.lower()
            if not colon or (low == b"content-length" and low in headers):
                return self._refuse(400, "malformed header")
            headers[low] = value.strip()
        route = self._server.routes.get(words[1].partition(b"?")[0])
        if route is None:
            return self._refuse(404, "no such path")
        if words[0] != b"POST":
            return self._refuse(405, "POST only")
        if why := route.why_not(self._certificate):
            return self._refuse(403, why)
        length = headers.get(b"content-length", b"")
        if b"transfer-encoding" in headers or not (length.isdigit() and len(length) < 16):
            return self._refuse(411, "a length is required")
        self._length = int(length)
        if self._length > route.largest_bytes:
            return self._refuse(413, f"{self._length} bytes are more than {route.largest_bytes}")
        self._route, self._headers = route, headers
        if not self._count():
            return False
        closes = headers.get(b"connection", b"").lower() == b"close"
        self._keeps = words[2] == b"HTTP/1.1" and not closes
        if headers.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _count(self) -> bool:
        """Count received bytes of the request; returns False if it is refused for the limit."""
        if self._answering:  # It has been received completely.
            return True
        more = min(len(self._buffer), self._length) - self._counted
        if more > 0 and self._server.is_too_much(self._origin, more):
            return self._refuse(503, "too many concurrent requests: try again")
        self._counted += more
        self._server.bytes_of[self._origin] += more
        return True

    def look(self, now_s: float) -> None:
        """End the connection if its current state timed out."""
        waited_s = now_s - self._since_s
        if self._transport is None or self._answering:
            return
        if self._refused or self._full:
            if waited_s > (LINGER_S if self._refused else READ_S):
                self._transport.abort()
        elif self._route is not None or self._buffer:
            if waited_s > READ_S:
                self._refuse(408, f"timed out after {READ_S:g} s: the request is incomplete")
        elif waited_s > IDLE_S:
            self._transport.close()

    # -- answering --------------------------------------------------------------------------------

    def _answer(self, route: Route) -> None:
        request = Request(self._headers, bytes(memoryview(self._buffer)[: self._length]))
        del self._buffer[: self._length]
        self._answering = True
        try:
            made = route.handle(request)
        except Exception:
            _log.exception("%s: the request failed with an internal error", self._server.setting)
            made = refused(500, "internal error")
        if isinstance(made, Response):
            self._write(made)
            return
        task = self._loop.create_task(self._answer_later(made))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _answer_later(self, made: Coroutine[Any, Any, Response]) -> None:
        """Complete the answer even if the client disconnects, since it may be a binding."""
        try:
            answer = await made
        except Exception:
            _log.exception("%s: the request failed with an internal error", self._server.setting)
            answer = refused(500, "internal error")
        self._write(answer)
        if self._transport is not None:
            self._transport.resume_reading()
        self._go()

    def _write(self, answer: Response) -> None:
        self._answering = False
        self._done()
        transport = self._transport
        if transport is None:
            return
        keeps = self._keeps and not self._server.drains
        transport.write(_text(answer, keeps))
        self._since_s = self._loop.time()
        if not keeps:
            self._refused = True
            transport.close()

    def _refuse(self, status: int, why: str) -> bool:
        self._refused = True
        self._server.clients.mark(self._client, asked=False)
        self._buffer.clear()
        self._done()
        if self._transport is not None:
            self._transport.write(_text(refused(status, why), keeps=False))
        self._since_s = self._loop.time()
        return False

    def _done(self) -> None:
        left = self._server.bytes_of
        left[self._origin] -= self._counted
        if not left[self._origin]:
            del left[self._origin]
        self._route, self._counted = None, 0

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _text(answer: Response, keeps: bool) -> bytes:
    status = HTTPStatus(answer.status)
    closes = b"" if keeps else b"Connection: close\r\n"
    return b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n%s" % (
        status.value,
        status.phrase.encode(),
        answer.kind,
        closes,
        len(answer.body),
        answer.body,
    )
