"""The webhooks that the API server calls over TLS: /convert, /validate, and further given paths.

Any replica may answer. A webhook cannot ask for credentials, since API servers have none for it. So
each path ends in a word that only the API server receives, in the configurations that the
controller registers; a request without it is refused before its body is read. A user can cause
requests by writing objects: what is large is parsed in a child process with a memory limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from queuecontroller.kueueapi.crds import CONVERT_PATH, VALIDATE_PATH
from queuecontroller.server.web.extender import ExtenderEndpoint
from queuecontroller.server.web.large import LargeReviews
from queuecontroller.server.web.posts import PostServer, Request, Response, Route, refused
from queuecontroller.server.web.reviews import BadReview, converted, is_large, judged
from sluicecommon.web.listener import Certificate

LARGEST_BYTES: Final = 8 << 20
"""Limit of a request: 1,600 Workloads of 5 KiB to convert. A review contains an object twice, and
the API server reads 3 MiB of each."""
RENEWED_S: Final = 10.0
"""Interval at which changed certificates are loaded."""
_KEPT_WORDS: Final = 2
"""The word of a renewed key, and the one that is registered until the API server has the new
one."""
_log: Final = logging.getLogger(__name__)


def word_of(key: Path) -> str:
    """The last part of the webhooks' paths. It is derived from the private key, which all replicas
    share. Raises OSError."""
    return hmac.digest(key.read_bytes(), b"sluice webhook path", hashlib.sha256).hex()[:32]


class WebhookServer:
    def __init__(
        self,
        address: tuple[str, int],
        certificate: Path,
        key: Path,
        more: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
        scheduling: ExtenderEndpoint | None = None,
    ) -> None:
        """`more` are further webhooks by path, for admission; `scheduling` is the extender, whose
        callers have client certificates."""
        self._more = more
        self._scheduling = scheduling
        self._address = address
        self._files = (certificate, key)
        self._certificate: Certificate | None = None
        self._large = LargeReviews()
        self._words: tuple[str, ...] = ()
        self._server: PostServer | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to listen. Raises OSError (also ssl.SSLError) if the address is in use or a
        certificate cannot be loaded."""
        authority = self._scheduling.authority if self._scheduling is not None else None
        self._certificate = Certificate(*self._files, authority)
        # Session tickets cost a third of a handshake, and Go's clients do not use them here.
        self._certificate.context.num_tickets = 0
        server = PostServer({}, self._certificate, "kubernetes.webhooks_listen")
        self._server = server
        self.renew()
        await server.start(*self._address)
        self._renewing = asyncio.create_task(self._keep_renewed())

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    @property
    def word(self) -> str:
        """The last part of the webhooks' paths."""
        return self._words[0]

    def drain(self) -> None:
        """See `PostServer.drain`."""
        if self._server is not None:
            self._server.drain()

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._server is not None:
            await self._server.close()
        await self._large.close()
        if self._scheduling is not None:
            await self._scheduling.close()

    def renew(self) -> None:
        """Load changed files; open connections keep the old certificate. Raises OSError."""
        assert self._server is not None
        assert self._certificate is not None
        self._certificate.refresh()
        word = word_of(self._files[1])
        if word in self._words[:1]:
            return
        self._words = (word, *self._words[: _KEPT_WORDS - 1])
        every = {CONVERT_PATH: converted, VALIDATE_PATH: judged, **self._more}
        routes = {
            f"{path}/{one}": self._route(path, answer)
            for path, answer in every.items()
            for one in self._words
        }
        if (endpoint := self._scheduling) is not None:
            routes |= endpoint.routes()
        self._server.serve(routes)

    async def _keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_S)
            try:
                self.renew()
            except OSError as error:  # The file may be half written; it is read again later.
                _log.warning("webhooks: the certificate %s: %s", self._files[0], error)

    def _route(self, path: str, answer: Callable[[bytes], bytes]) -> Route:
        def handle(request: Request) -> Response | Coroutine[None, None, Response]:
            if is_large(request.body):
                return self._apart(path, answer, request.body)
            return _answered(answer, request.body)

        return Route(handle, LARGEST_BYTES)

    async def _apart(self, path: str, answer: Callable[[bytes], bytes], body: bytes) -> Response:
        """Response what is large: in the child process, or here once it has been weighed there."""
        made = await self._large.read(path, body)
        if made is None:
            made = await asyncio.to_thread(_answered, answer, body)
        return made


def _answered(answer: Callable[[bytes], bytes], body: bytes) -> Response:
    try:
        return Response(answer(body))
    except BadReview as error:
        return refused(400, str(error))
