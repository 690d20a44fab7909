"""/metrics, /healthz and /readyz over HTTP, in the controller's own event loop.

GET only, one request per connection, 2 s to send it. /healthz says that the loops come round
(restart it if not); /readyz says that it decides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from queuecontroller.service.shell import Shell

REQUEST_DEADLINE_S: Final = 2.0
LONGEST_REQUEST_BYTES: Final = 8 << 10
MOST_CLIENTS: Final = 32
HEALTHY_SILENCE_S: Final = 30.0
"""A loop that has not come round for this long makes /healthz fail; the longest step, taking over
100,000 workloads after an edit of a queue, takes seconds."""
_PLAIN: Final = "text/plain; charset=utf-8"


class HttpServer:
    def __init__(self, host: str, port: int, shell: Shell, metrics: Callable[[], bytes]) -> None:
        self._address = (host, port)
        self._shell = shell
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        try:
            self._server = await asyncio.start_server(
                self._serve, *self._address, limit=LONGEST_REQUEST_BYTES
            )
        except OSError as error:
            raise OSError(f"server.metrics_listen: {error.strerror}") from error

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients > MOST_CLIENTS:
                return
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
            self._clients -= 1
            with contextlib.suppress(ConnectionError):
                writer.close()

    def answer(self, head: bytes) -> tuple[str, str, bytes]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return "405 Method Not Allowed", _PLAIN, b"GET only\n"
        path = words[1].split(b"?", 1)[0]
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, self._metrics()
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
