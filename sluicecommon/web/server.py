"""HTTP as far as scrapes and probes need it: GET only, one request per connection, 2 s for all of
it from the first byte of a TLS handshake on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sluicecommon.web.clients import Clients

log = logging.getLogger(__name__)

REQUEST_DEADLINE_S: Final = 2.0
LONGEST_REQUEST_BYTES: Final = 8 << 10
PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    """"200 OK"."""
    body: bytes
    kind: str = PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


Responder = Callable[[bytes, Mapping[str, str]], Answer]
"""Of a path without its query, and the headers by their names in lower case."""


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
                log.info("%s: a new certificate is in use", self._files[0])
        except OSError as error:
            log.warning("a certificate cannot be read again: %s", error)

    def _stamp(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in self._files)


class WebServer:
    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        answer: Responder,
        certificate: Certificate | None = None,
    ) -> None:
        """`setting` is what names the address."""
        self._setting = setting
        self._address = address
        self._answer = answer
        self._certificate = certificate
        self._server: asyncio.Server | None = None
        self.clients = Clients()

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        try:
            self._server = await asyncio.start_server(
                self._serve, *self._address, limit=LONGEST_REQUEST_BYTES
            )
        except OSError as error:
            raise OSError(f"{self._setting}: {error.strerror}") from error
        log.info("%s: port %d", self._setting, self.port)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername") or ("",)
        # abort(): close() would wait for a client that does not read.
        client = self.clients.enter(peer[0], lambda: writer.transport.abort())
        try:
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                if self._certificate is not None:
                    # Here and not in start_server: a handshake that does not end counts, too.
                    self._certificate.refresh()
                    await writer.start_tls(self._certificate.context)
                head = await reader.readuntil(b"\r\n\r\n")
                client.asked = True
                writer.write(self.reply(head))
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            ssl.SSLError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass  # the client is slow, gone, or no HTTP client: nobody is left to tell
        finally:
            self.clients.leave(client)
            with contextlib.suppress(ConnectionError):
                writer.close()

    def reply(self, head: bytes) -> bytes:
        """To everything up to the empty line, whatever it is."""
        answer = self._of(head)
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        return (
            f"HTTP/1.1 {answer.status}\r\nContent-Type: {answer.kind}\r\n"
            f"Content-Length: {len(answer.body)}\r\n{extra}Connection: close\r\n\r\n"
        ).encode() + answer.body

    def _of(self, head: bytes) -> Answer:
        first, *lines = head.split(b"\r\n")
        words = first.split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return Answer("405 Method Not Allowed", b"GET only\n")
        headers = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return self._answer(words[1].split(b"?", 1)[0], headers)
