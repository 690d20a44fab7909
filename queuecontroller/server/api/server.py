"""The gRPC server: both services behind `Listeners`, on sockets that only they can reach; TLS for
connections over TCP.

Certificates are reloaded when their files change, because tools replace short-lived ones every few
hours without restarting services.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import grpc

from queuecontroller.server.callers.listeners import (
    LOCAL_WITHIN_S,
    PROVE_WITHIN_S,
    Listeners,
)
from queuecontroller.server.config import Settings, TlsSettings

log = logging.getLogger(__name__)

STOP_GRACE_S: Final = 1.0
STREAMS_A_CONNECTION: Final = 24
"""Concurrent calls of one connection. They wait in gRPC's single queue before their caller is
known: with 300, a call of another caller waited behind thousands. Clients hold back further calls
by themselves; a node follows all its pending workloads in one stream, and has at most 16 calls."""
MAX_PENDING: Final = 1 << 20
"""Limit of that queue. gRPC's own is 1,000 and refuses calls of any caller beyond it; here
connections and streams are limited instead."""
WAITS_S: Final = int(LOCAL_WITHIN_S)
"""Longest time that a call waits in that queue while this process is busy. gRPC's own is 30 s,
after which it answers CANCELLED without a reason."""
IDLE_MS: Final = 300_000
"""Idle time after which a connection without calls is closed; the client reconnects if needed."""


class TlsUnusable(Exception):
    """A certificate or key cannot be used; the text names the file."""


class CertificateFiles:
    """Reads the PEM files; `changed` returns a new configuration only if a file has changed."""

    def __init__(self, tls: TlsSettings) -> None:
        self._tls = tls
        self._seen: tuple[int, ...] = ()

    def read(self) -> Any:
        """The TLS configuration in the files. Raises TlsUnusable."""
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
                raise TlsUnusable(f"{path}: does not contain a PEM {word.decode()}")
        return grpc.ssl_server_certificate_configuration(
            [(key, chain)], root_certificates=authority
        )

    def changed(self) -> Any:
        """The new configuration; None if the files are unchanged or cannot be read at present."""
        try:
            if self._stamps() == self._seen:
                return None
            found = self.read()
        except (OSError, TlsUnusable) as error:
            log.error("TLS files changed but cannot be used, the old ones stay in use: %s", error)
            return None
        log.info("TLS files reloaded")
        return found

    def _stamps(self) -> tuple[int, ...]:
        tls = self._tls
        paths = [path for path in (tls.certificate, tls.key, tls.client_ca) if path]
        return tuple(Path(path).stat().st_mtime_ns for path in paths)


class GrpcServer:
    def __init__(self, settings: Settings, listeners: Listeners, handlers: list[Any]) -> None:
        self._settings = settings
        self._listeners = listeners
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
                ("grpc.server.max_pending_requests", MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
                ("grpc.server_max_unrequested_time_in_server", WAITS_S),
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
            bound = self._server.add_insecure_port(self._listeners.plain_target)
            if tls.certificate:
                files = CertificateFiles(tls)
                credentials = grpc.dynamic_ssl_server_credentials(
                    files.read(),
                    files.changed,
                    require_client_authentication=bool(tls.client_ca),
                )
                bound = bound and self._server.add_secure_port(
                    self._listeners.tls_target, credentials
                )
        except RuntimeError as error:  # gRPC gives no further reason.
            raise OSError(f"cannot listen below {self._listeners.plain_target}: {error}") from error
        if not bound:
            raise OSError(f"cannot listen below {self._listeners.plain_target}")
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
