"""The address of a page. It is taken when the service starts, so that its port is known and a
mistake in the settings is told at once; behind it everything else (aiohttp, the front end's files)
is loaded when somebody first asks for the page, and until then connections are refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluicecommon.web.server import Certificate

if TYPE_CHECKING:
    from sluicecommon.web.page import Backend, PageServer

log = logging.getLogger(__name__)


class PageListener:
    def __init__(
        self,
        address: tuple[str, int],
        make: Callable[[], Backend],
        certificate: str = "",
        key: str = "",
        url: str = "",
    ) -> None:
        """`make` imports what the page needs. `url` is where people find it, if not at
        `address`."""
        self._address = address
        self._make = make
        self._files = (certificate, key)
        self._url = url.rstrip("/")
        self._certificate: Certificate | None = None
        self._socket: socket.socket | None = None
        self._opening: asyncio.Task[None] | None = None
        self.server: PageServer | None = None

    async def start(self) -> None:
        """Raises OSError, with the setting's name."""
        host, port = self._address
        certificate, key = self._files
        if certificate:
            try:
                self._certificate = Certificate(Path(certificate), Path(key))
            except OSError as error:
                raise OSError(f"page.certificate: {certificate}: {error}") from error
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            what = f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}"
            raise OSError(f"page.listen: {what}") from error
        self._socket = bound

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        if self._url:
            return self._url
        host = self._address[0]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._certificate is not None else 'http'}://{shown}:{self.port}"

    def open(self) -> None:
        """From now on there is a page; connections that come before it is loaded wait for it."""
        if self._opening is None and self._socket is not None:
            self._socket.listen(64)
            self._opening = asyncio.get_running_loop().create_task(self._open(self._socket))
            self._opening.add_done_callback(_told)

    async def _open(self, bound: socket.socket) -> None:
        # In a thread: a third of a second that nobody else should wait for.
        backend, server = await asyncio.to_thread(self._load, bound)
        self.server = server
        backend.start()
        await server.start()

    def _load(self, bound: socket.socket) -> tuple[Backend, PageServer]:
        from sluicecommon.web.page import PageServer

        backend = self._make()
        self._backend = backend
        return backend, PageServer(bound, backend, self._certificate)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self.server is not None:
            await self._backend.close()
            await self.server.close()
        if self._socket is not None:
            self._socket.close()


def _told(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("page: it cannot be opened", exc_info=task.exception())
