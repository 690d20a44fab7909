"""The webhooks that the API server calls over TLS: /convert, /validate, and further given paths.

Answers depend only on the request, so any replica may give them. Callers are not authenticated:
a call can neither read nor change state, and the work that it causes is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.kueueapi.crds import CONVERT_PATH, VALIDATE_PATH
from queuecontroller.server.web.extender import ExtenderEndpoint
from queuecontroller.server.web.posts import Answered, Asked, PostServer, Route, refused
from queuecontroller.server.web.reviews import BadReview, converted, judged

LARGEST_BYTES: Final = {CONVERT_PATH: 64 << 20, VALIDATE_PATH: 8 << 20}
"""Limits of a request. A list of an old version is converted in one: 64 MiB are more than 10,000
Workloads of 5 KiB. One object may have 1.5 MiB in etcd, and a review contains it twice."""
IN_A_THREAD_BYTES: Final = 256 << 10
"""Size from which a request is answered in a thread, since it would block the loop for
milliseconds."""
RENEWED_S: Final = 10.0
"""Interval at which changed certificates are loaded."""
_log: Final = logging.getLogger(__name__)


class WebhookServer:
    def __init__(
        self,
        address: tuple[str, int],
        certificate: Path,
        key: Path,
        more: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
        scheduling: ExtenderEndpoint | None = None,
    ) -> None:
        """`more` are further webhooks by path; `scheduling` is the extender, whose callers have
        client certificates."""
        self._more = more
        self._scheduling = scheduling
        self._address = address
        self._files = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Session tickets cost a third of a handshake, and Go's clients do not use them here.
        self._context.num_tickets = 0
        self._loaded: tuple[int, ...] = ()
        self._server: PostServer | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to listen. Raises OSError (also ssl.SSLError) if the address is in use or a
        certificate cannot be loaded."""
        self.renew()
        every = {CONVERT_PATH: converted, VALIDATE_PATH: judged, **self._more}
        routes = {path: _route(path, answer) for path, answer in every.items()}
        if (endpoint := self._scheduling) is not None:
            routes |= endpoint.routes()
        server = PostServer(routes, self._context, "kubernetes.webhooks_listen")
        await server.start(*self._address)
        self._server = server
        self._renewing = asyncio.create_task(self._keep_renewed())

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._server is not None:
            await self._server.close()
        if self._scheduling is not None:
            await self._scheduling.close()

    def renew(self) -> None:
        """Load changed files; open connections keep the old certificate."""
        endpoint = self._scheduling
        files = (*self._files, endpoint.authority) if endpoint is not None else self._files
        seen = tuple(one.stat().st_mtime_ns for one in files)
        if seen != self._loaded:
            self._context.load_cert_chain(*self._files)
            if endpoint is not None:
                # The API server has no client certificate; one of another CA is refused.
                self._context.load_verify_locations(endpoint.authority)
                self._context.verify_mode = ssl.CERT_OPTIONAL
            self._loaded = seen

    async def _keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_S)
            try:
                self.renew()
            except OSError as error:  # The file may be half written; it is read again later.
                _log.warning("webhooks: the certificate %s: %s", self._files[0], error)


def _route(path: str, answer: Callable[[bytes], bytes]) -> Route:
    async def in_a_thread(body: bytes) -> Answered:
        return await asyncio.to_thread(_answered, answer, body)

    def handle(asked: Asked) -> Answered | Coroutine[Any, Any, Answered]:
        if len(asked.body) > IN_A_THREAD_BYTES:
            return in_a_thread(asked.body)
        return _answered(answer, asked.body)

    return Route(handle, LARGEST_BYTES.get(path, LARGEST_BYTES[VALIDATE_PATH]))


def _answered(answer: Callable[[bytes], bytes], body: bytes) -> Answered:
    try:
        return Answered(answer(body))
    except BadReview as error:
        return refused(400, str(error))
