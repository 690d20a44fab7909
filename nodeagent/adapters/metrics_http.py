"""/metrics and /healthz over HTTP or HTTPS, from cached figures: a scrape never touches NVML or a
tenant.

A server of its own in the daemon's event loop instead of a thread per scrape: GET only, one
request per connection, 2 s to send it. /healthz asks nobody who they are: probes cannot.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.core.exposition import OPENMETRICS, TEXT, wants_openmetrics
from nodeagent.ports import NodeView

log = logging.getLogger(__name__)

REQUEST_DEADLINE_S: Final = 2.0
LONGEST_REQUEST_BYTES: Final = 8 << 10
MOST_CLIENTS: Final = 32
HEALTHY_SILENCE_S: Final = 10.0
"""A loop that has not come round for this long makes /healthz fail."""
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may scrape: anybody, or whoever brings one of these."""

    bearer_token: str = ""
    basic: str = ""
    """USER:PASSWORD."""

    def allows(self, header: str) -> bool:
        if not self.bearer_token and not self.basic:
            return True
        scheme, _, given = header.strip().partition(" ")
        wanted = ""
        if scheme.lower() == "bearer":
            wanted = self.bearer_token
        elif scheme.lower() == "basic" and self.basic:
            wanted = base64.b64encode(self.basic.encode()).decode()
        return bool(wanted) and hmac.compare_digest(given.strip().encode(), wanted.encode())


ANYBODY: Final = Access()


class Certificate:
    """A server's TLS, with the files looked at again when they change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Raises OSError, ssl.SSLError being one."""
        self._files = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._stamp()
        self.context.load_cert_chain(certificate, key)

    def refresh(self) -> None:
        """Later handshakes use the new files; ones that cannot be read are passed over."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self.context.load_cert_chain(*self._files)
                log.info("metrics: a new certificate is in use")
        except OSError as error:
            log.warning("metrics: the certificate cannot be read again: %s", error)

    def _stamp(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in self._files)


class MetricsServer:
    def __init__(
        self,
        host: str,
        port: int,
        view: Callable[[], NodeView],
        render: Callable[[bool], bytes],
        now_unix_s: Callable[[], float],
        access: Access = ANYBODY,
        certificate: Certificate | None = None,
    ) -> None:
        """`render` answers the page, in OpenMetrics when True."""
        self._address = (host, port)
        self._view = view
        self._render = render
        self._now_unix_s = now_unix_s
        self._access = access
        self._certificate = certificate
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        try:
            self._server = await asyncio.start_server(
                self._serve,
                *self._address,
                limit=LONGEST_REQUEST_BYTES,
                ssl=self._certificate.context if self._certificate is not None else None,
                ssl_handshake_timeout=REQUEST_DEADLINE_S if self._certificate is not None else None,
            )
        except OSError as error:
            raise OSError(error.errno, f"metrics.listen: {error.strerror}") from error
        log.info("metrics at port %d", self.port)

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
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head))
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
            if self._certificate is not None:
                self._certificate.refresh()

    def _reply(self, head: bytes) -> bytes:
        status, kind, body = self._answer(head)
        extra = 'WWW-Authenticate: Basic realm="sluice"\r\n' if status.startswith("401") else ""
        return (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}"
            "Connection: close\r\n\r\n"
        ).encode() + body

    def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return "405 Method Not Allowed", _PLAIN, b"GET only\n"
        headers = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        path = words[1].split(b"?", 1)[0]
        if path == b"/healthz":
            return self._health()
        if not self._access.allows(headers.get("authorization", "")):
            return "401 Unauthorized", _PLAIN, b"a token or a password is needed\n"
        if path == b"/metrics":
            openmetrics = wants_openmetrics(headers.get("accept", ""))
            return "200 OK", OPENMETRICS if openmetrics else TEXT, self._render(openmetrics)
        return "404 Not Found", _PLAIN, b"see /metrics\n"

    def _health(self) -> tuple[str, str, bytes]:
        now_s = self._now_unix_s()
        silent = [
            loop.name
            for loop in self._view().loops
            if now_s - loop.last_ok_unix_s > HEALTHY_SILENCE_S
        ]
        if silent:
            return "503 Service Unavailable", _PLAIN, f"silent: {', '.join(silent)}\n".encode()
        return "200 OK", _PLAIN, b"ok\n"
