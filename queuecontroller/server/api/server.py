"""The gRPC server: both services behind the doors, on sockets that only the doors reach; TLS for
what came over TCP.

Certificates are read again when their files change, because short-lived ones are replaced every
few hours by tools that restart nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import grpc

from queuecontroller.server.callers.listeners import PROVE_WITHIN_S, Listeners
from queuecontroller.server.config import Settings, TlsSettings

log = logging.getLogger(__name__)

STOP_GRACE_S: Final = 1.0
STREAMS_A_CONNECTION: Final = 24
"""All that are open at once stand in gRPC's one line, before we know whose they are: with 300, an
honest call stood behind thousands. Clients keep further calls back by themselves; a node follows
all that wait there in one stream, and has 16 calls for them at once."""
MOST_PENDING: Final = 1 << 20
"""gRPC's own limit of that line is 1,000, and what is above it is refused whoever it is from. Ours
is by connections and streams."""
IDLE_MS: Final = 300_000
"""A connection without a call for so long is closed; its client opens another when it has one."""


class TlsUnusable(Exception):
    """A certificate or key that cannot be served with; the text names the file."""


class CertificateFiles:
    """Reads the PEM files; `changed` gives a new configuration only when a file is new."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._seen: tuple[int, ...] = ()

    def read(self) -> Any:
        """Raises TlsUnusable."""
        try:
            self._seen = self._stamps()
            chain = Path(self._tls.certificate).read_bytes()
            key = Path(self._tls.key).read_bytes()
            authority = Path(self._tls.client_ca).read_bytes() if self._tls.client_ca else None
        except OSError as error:
            raise TlsUnusable(f"{error.filename}: {error.strerror}") from error
        for path, pem, word in (
            (self._tls.certificate, chain, b"CERTIFICATE"),
            (self._tls.key, key, b"PRIVATE KEY"),
            (self._tls.client_ca, authority, b"CERTIFICATE"),
        ):
            if pem is not None and word not in pem:
                raise TlsUnusable(f"{path}: holds no PEM {word.decode()}")
        return grpc.ssl_server_certificate_configuration(
            [(key, chain)], root_certificates=authority
        )

    def changed(self) -> Any:
        """None while the files are the same, or unreadable just now (being replaced)."""
        try:
            if self._stamps() == self._seen:
                return None
            found = self.read()
        except (OSError, TlsUnusable) as error:
            log.error("TLS files changed and cannot be used, the old ones stay: %s", error)
            return None
        log.info("TLS files read again")
        return found

    def _stamps(self) -> tuple[int, ...]:
        tls = self._tls
        paths = [path for path in (tls.certificate, tls.key, tls.client_ca) if path]
        return tuple(Path(path).stat().st_mtime_ns for path in paths)


class GrpcServer:
    def __init__(self, settings: Settings, doors: Listeners, handlers: list[Any]) -> None:
        self._settings = settings
        self._doors = doors
        self._handlers = handlers
        self._server: Any = None

    async def start(self) -> None:
        """Raises TlsUnusable, OSError."""
        largest = self._settings.server.max_message_kib << 10
        self._server = grpc.aio.server(
            handlers=self._handlers,
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", 4 * largest),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION),
                ("grpc.server.max_pending_requests", MOST_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
                ("grpc.server_handshake_timeout_ms", int(PROVE_WITHIN_S * 1000)),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ],
        )
        tls = self._settings.tls
        try:
            bound = self._server.add_insecure_port(self._doors.plain_target)
            if tls.certificate:
                files = CertificateFiles(tls)
                credentials = grpc.dynamic_ssl_server_credentials(
                    files.read(),
                    files.changed,
                    require_client_authentication=bool(tls.client_ca),
                )
                bound = bound and self._server.add_secure_port(self._doors.tls_target, credentials)
        except RuntimeError as error:  # gRPC says no more than that it could not
            raise OSError(f"cannot listen below {self._doors.plain_target}: {error}") from error
        if not bound:
            raise OSError(f"cannot listen below {self._doors.plain_target}")
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
