"""/metrics, /healthz and /readyz over HTTP, in the controller's own event loop.

GET only, one request per connection, 2 s to send it. /healthz says that the loops come round
(restart it if not); /readyz says that it decides. When too many are here at once, the address that
has the most loses its oldest: silent ones keep nobody else from an answer. Probes may have a
listener of their own, without /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

REQUEST_DEADLINE_S: Final = 2.0
LONGEST_REQUEST_BYTES: Final = 8 << 10
MOST_CLIENTS: Final = 64
SCRAPE_S: Final = 0.25
HEALTHY_SILENCE_S: Final = 30.0
"""A loop that has not come round for this long makes /healthz fail; the longest step, taking over
100,000 workloads after an edit of a queue, takes seconds."""
_PLAIN: Final = "text/plain; charset=utf-8"


class Serving(Protocol):
    """Who is asked how it is."""

    @property
    def why_not_ready(self) -> str: ...
    def silent_loops(self, seconds: float) -> list[str]: ...


class HttpServer:
    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        shell: Serving,
        metrics: Callable[[], bytes] | None,
    ) -> None:
        """`setting` names the address for messages; without `metrics` it is for probes alone."""
        self._setting = setting
        self._address = address
        self._shell = shell
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.StreamWriter, str] = {}
        """By connection, in the order they came: the address."""
        self._metrics_text = b""
        self._metrics_at_s = -SCRAPE_S

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        try:
            self._server = await asyncio.start_server(
                self._serve, *self._address, limit=LONGEST_REQUEST_BYTES
            )
        except OSError as error:
            raise OSError(f"{self._setting}: {error.strerror}") from error

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self._clients[writer] = str(peer[0]) if peer else ""
        if len(self._clients) > MOST_CLIENTS:
            self._turn_out()
        try:
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                status, kind, body = self.answer(await reader.readuntil(b"\r\n\r\n"))
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass  # the client is slow, gone, or no HTTP client: nobody is left to tell
        finally:
            self._clients.pop(writer, None)
            with contextlib.suppress(ConnectionError):
                writer.close()

    def _turn_out(self) -> None:
        greediest, _ = Counter(self._clients.values()).most_common(1)[0]
        victim = next(one for one, address in self._clients.items() if address == greediest)
        del self._clients[victim]
        victim.transport.abort()

    def _scrape(self) -> bytes:
        """The same text for all who ask within a moment: it costs tens of milliseconds."""
        assert self._metrics is not None
        now_s = monotonic()
        if now_s - self._metrics_at_s >= SCRAPE_S:
            self._metrics_text, self._metrics_at_s = self._metrics(), now_s
        return self._metrics_text

    def answer(self, head: bytes) -> tuple[str, str, bytes]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return "405 Method Not Allowed", _PLAIN, b"GET only\n"
        path = words[1].split(b"?", 1)[0]
        if path == b"/metrics" and self._metrics is not None:
            return "200 OK", CONTENT_TYPE_LATEST, self._scrape()
        if path == b"/healthz":
            silent = self._shell.silent_loops(HEALTHY_SILENCE_S)
            return _verdict(f"silent: {', '.join(silent)}" if silent else "")
        if path == b"/readyz":
            return _verdict(self._shell.why_not_ready)
        return "404 Not Found", _PLAIN, b"see /metrics, /healthz, /readyz\n"


def _verdict(wrong: str) -> tuple[str, str, bytes]:
    if wrong:
        return "503 Service Unavailable", _PLAIN, f"{wrong}\n".encode()
    return "200 OK", _PLAIN, b"ok\n"
