"""The webhooks that the API server calls, over TLS: /convert, /validate, and what else it is given.

Answers come from the question alone, so any replica may give them. Whoever reaches the port may
ask: there is nothing to learn or to change, only work to cause, and that is bounded.
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
"""A list of an old version comes as one question: 64 MiB are more than 10,000 Workloads of 5 KiB.
One object may have 1.5 MiB in etcd, and a question has it twice."""
IN_A_THREAD_BYTES: Final = 256 << 10
"""Larger ones take milliseconds, and the loop has more to do."""
RENEWED_S: Final = 10.0
"""How soon a renewed certificate counts."""
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
        """`more`: further questions, by path; `scheduling`: those of schedulers, who show
        certificates."""
        self._more = more
        self._scheduling = scheduling
        self._address = address
        self._files = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.num_tickets = 0  # a third of a handshake, and Go's clients never show one
        self._loaded: tuple[int, ...] = ()
        self._server: PostServer | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError (ssl.SSLError is one): the address is taken, the files are no good."""
        self.renew()
        every = {CONVERT_PATH: converted, VALIDATE_PATH: judged, **self._more}
        routes = {path: _route(path, answer) for path, answer in every.items()}
        if (door := self._scheduling) is not None:
            routes |= door.routes()
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
        """Takes the files if they have changed; connections that are there keep the old ones."""
        door = self._scheduling
        files = (*self._files, door.authority) if door is not None else self._files
        seen = tuple(one.stat().st_mtime_ns for one in files)
        if seen != self._loaded:
            self._context.load_cert_chain(*self._files)
            if door is not None:
                # The API server shows none; who shows one that is not ours is refused.
                self._context.load_verify_locations(door.authority)
                self._context.verify_mode = ssl.CERT_OPTIONAL
            self._loaded = seen

    async def _keep_renewed(self) -> None:
        while True:
            await asyncio.sleep(RENEWED_S)
            try:
                self.renew()
            except OSError as error:  # half written, perhaps: the next look finds it whole
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
