"""The server of the visibility API, which only the API server's front proxy may call.

TLS requests the front proxy's client certificate: another certificate fails the handshake, and a
client without one receives 401. The CA is read again once a minute; a new CA requires a new
listener, since a CA cannot be removed from a TLS context.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from queuecontroller.cluster.setup.front_proxy import FrontProxy, User
from queuecontroller.cluster.status.visibility import (
    Question,
    Wrong,
    question,
    resources,
    table,
    wants_table,
)
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.web.clients import Client, Clients
from sluicecommon.web.listener import Certificate, Limits, Listener
from sluicecommon.web.malformed import quiet_log

AGAIN_S: Final = 60.0
SOON_S: Final = 2.0
AT_ONCE: Final = 64
"""Concurrent requests; more receive 429."""
FIRST_S: Final = 10.0
"""Timeout of the TLS handshake and the head of the first request together."""
MAX_CONNECTIONS: Final = 256
MAX_PER_ADDRESS: Final = 128
MAX_SILENT: Final = 64
"""Limit of connections that have sent no request yet, each of which costs 300 KiB."""
_log: Final = logging.getLogger(__name__)


class VisibilityServer:
    def __init__(
        self,
        address: tuple[str, int],
        files: tuple[Path, Path],
        read_proxy: Callable[[], Awaitable[FrontProxy | None]],
        why_not: Callable[[User, dict[str, str]], Awaitable[str | None]],
        answer: Callable[[Question], dict[str, Any]],
    ) -> None:
        """`files` are certificate and key, PEM. `answer` may raise Wrong."""
        self._address = address
        self._files = files
        self._read_proxy = read_proxy
        self._why_not = why_not
        self._answer = answer
        self._proxy: FrontProxy | None = None
        self._stamps: tuple[int, ...] = ()
        self._runner: web.AppRunner | None = None
        self._listener: Listener | None = None
        self.clients = Clients(MAX_CONNECTIONS, MAX_PER_ADDRESS, most_silent=MAX_SILENT)
        self._renewing: asyncio.Task[None] | None = None
        self._now = 0

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 16)
        app.router.add_get("/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, logger=quiet_log(__name__), auto_decompress=False
        )
        await self._runner.setup()
        self._renewing = asyncio.create_task(self._keep_renewed())

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._listener is not None:
            self._listener.stop()
        self.clients.drop_all()
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def listens(self) -> bool:
        """True once the front proxy is known."""
        return self._listener is not None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def _keep_renewed(self) -> None:
        while True:
            rest_s = AGAIN_S
            try:
                await self._renew()
            except (ApiAway, ApiRefused, OSError) as error:
                _log.warning("visibility: %s", error)
                rest_s = SOON_S
            await asyncio.sleep(rest_s)

    async def _renew(self) -> None:
        """Open a new listener if the CA or the certificate changed. Raises ApiAway, ApiRefused,
        OSError (also ssl.SSLError)."""
        proxy = await self._read_proxy()
        stamps = tuple(one.stat().st_mtime_ns for one in self._files)
        if self._listener is not None and (proxy, stamps) == (self._proxy, self._stamps):
            return
        if proxy is None:
            _log.warning(
                "visibility: the API server has no front proxy (--requestheader-client-ca-file):"
                " every request will be refused"
            )
        certificate = Certificate(*self._files)
        if proxy is not None:
            certificate.context.verify_mode = ssl.CERT_OPTIONAL
            certificate.context.load_verify_locations(cadata=proxy.authority)
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
            if proxy != self._proxy:  # Open connections are verified by the old authority.
                self.clients.drop_all()
        limits = Limits(FIRST_S, first_s=FIRST_S)
        listener = Listener(self._protocol, self.clients, limits, certificate)
        await listener.start("kubernetes.visibility_listen", self._address)
        self._listener, self._proxy, self._stamps = listener, proxy, stamps

    async def _protocol(self, _client: Client) -> asyncio.Protocol:
        assert self._runner is not None
        assert self._runner.server is not None
        made: asyncio.Protocol = self._runner.server()
        return made

    async def _handle(self, request: web.Request) -> web.Response:
        if self._now >= AT_ONCE:
            return _said(Wrong(429, "TooManyRequests", "too many concurrent requests: try again"))
        self._now += 1
        try:
            user = self._user(request)
            asked = question(request.rel_url.raw_path, request.rel_url.raw_query_string)
            if isinstance(asked, str):
                return _json(200, resources(asked))
            why = await self._why_not(user, asked.attributes)
            if why is not None:
                raise _forbidden(user, asked, why)
            made = self._answer(asked)
            if wants_table(request.headers.getall("Accept", [])):
                made = table(made)
            return _json(200, made)
        except Wrong as wrong:
            answer = _said(wrong)
            if wrong.status == 401:  # A stranger has no use for the connection.
                answer.force_close()
            return answer
        except (ApiAway, ApiRefused) as error:
            _log.warning("visibility: authorization failed: %s", error)
            return _said(Wrong(503, "ServiceUnavailable", "the API server does not answer"))
        finally:
            self._now -= 1

    def _user(self, request: web.Request) -> User:
        transport, proxy = request.transport, self._proxy
        shown = transport.get_extra_info("peercert") if transport is not None else None
        user = None
        if proxy is not None and proxy.vouches(shown):
            user = proxy.user(request.headers.items())
        if user is None:
            raise Wrong(401, "Unauthorized", "only the API server may call this: use its address")
        return user


def _forbidden(user: User, asked: Question, why: str) -> Wrong:
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    text = (
        f'{asked.plural}.{asked.attributes["group"]} "{asked.name}" is forbidden: User'
        f' "{user.name}" cannot get resource "{asked.plural}/{asked.attributes["subresource"]}"'
        f' in API group "{asked.attributes["group"]}"{where}'
    )
    return Wrong(403, "Forbidden", f"{text}: {why}" if why else text)


def _said(wrong: Wrong) -> web.Response:
    return _json(wrong.status, wrong.document())


def _json(status: int, document: dict[str, Any]) -> web.Response:
    text = json.dumps(document, separators=(",", ":"))
    return web.Response(status=status, text=text, content_type="application/json")
