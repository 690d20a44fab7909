"""The webhooks that the API server calls, over TLS: /convert, /validate, and what else it is given.

Answers come from the question alone, so any replica may give them. Whoever reaches the port may
ask: there is nothing to learn or to change, only work to cause, and that is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from aiohttp import web

from queuecontroller.adapters.web.reviews import BadReview, converted, judged
from queuecontroller.adapters.web.scheduling import SchedulerDoor
from queuecontroller.kueue_api.crds import CONVERT_PATH, VALIDATE_PATH

LARGEST_BYTES: Final = {CONVERT_PATH: 64 << 20, VALIDATE_PATH: 8 << 20}
"""A list of an old version comes as one question: 64 MiB are more than 10,000 Workloads of 5 KiB.
One object may have 1.5 MiB in etcd, and a question has it twice."""
ALL_BYTES: Final = 128 << 20
"""Of all questions at a time."""
READ_S: Final = 20.0
"""The API server itself waits for 30 at most."""
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
        scheduling: SchedulerDoor | None = None,
    ) -> None:
        """`more`: further questions, by path; `scheduling`: those of schedulers, who show
        certificates."""
        self._more = more
        self._scheduling = scheduling
        self._address = address
        self._files = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._loaded: tuple[int, ...] = ()
        self._bytes = 0
        self._runner: web.AppRunner | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError (ssl.SSLError is one): the address is taken, the files are no good."""
        self.renew()
        app = web.Application(client_max_size=max(LARGEST_BYTES.values()))
        app.router.add_post(CONVERT_PATH, self._handler(CONVERT_PATH, converted))
        app.router.add_post(VALIDATE_PATH, self._handler(VALIDATE_PATH, judged))
        for path, answer in self._more.items():
            app.router.add_post(path, self._handler(path, answer))
        if (door := self._scheduling) is not None:
            for verb in door.verbs:
                app.router.add_post(door.path(verb), partial(door.handle, verb))
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        host, port = self._address
        await web.TCPSite(self._runner, host, port, ssl_context=self._context).start()
        self._renewing = asyncio.create_task(self._keep_renewed())

    @property
    def port(self) -> int:
        assert self._runner is not None
        port: int = self._runner.addresses[0][1]
        return port

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._runner is not None:
            await self._runner.cleanup()
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

    def _handler(
        self, path: str, answer: Callable[[bytes], bytes]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            length = request.content_length
            largest = LARGEST_BYTES.get(path, LARGEST_BYTES[VALIDATE_PATH])
            if length is None:
                return _refused(411, "a length is required")
            if length > largest:
                return _refused(413, f"{length} bytes are more than {largest}")
            if self._bytes + length > ALL_BYTES:
                return _refused(503, "too much at once: ask again")
            self._bytes += length
            try:
                async with asyncio.timeout(READ_S):
                    body = await request.read()
                if len(body) > IN_A_THREAD_BYTES:
                    made = await asyncio.to_thread(answer, body)
                else:
                    made = answer(body)
            except TimeoutError:
                return _refused(408, f"the question did not come within {READ_S:g} s")
            except BadReview as error:
                return _refused(400, str(error))
            finally:
                self._bytes -= length
            return web.Response(body=made, content_type="application/json")

        return handle


def _refused(status: int, why: str) -> web.Response:
    return web.Response(status=status, text=f"{why}\n")
