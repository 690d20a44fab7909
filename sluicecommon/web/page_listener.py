"""The address of the page.

It is bound when the service starts, so that its port is known and a mistake in the settings is
reported at once. What is behind it (aiohttp, the front end's files) is loaded when a user first
asks for the page; until then connections are refused.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sluicecommon.web.listener import Certificate, bind

if TYPE_CHECKING:
    from sluicecommon.web.page import Backend, PageServer

log = logging.getLogger(__name__)


class PageListener:
    """Binds the page's address at the start and serves the page once it is opened."""

    def __init__(
        self,
        address: tuple[str, int],
        make: Callable[[], Backend],
        certificate: str = "",
        key: str = "",
        url: str = "",
    ) -> None:
        """`make` imports what the page needs. `url` is the public address, if it is not
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
        """Bind the address. Raises OSError, whose text begins with the setting's name."""
        certificate, key = self._files
        if certificate:
            try:
                self._certificate = Certificate(Path(certificate), Path(key))
            except OSError as error:
                raise OSError(f"page.certificate: {certificate}: {error}") from error
        self._socket = bind("page.listen", self._address)

    @property
    def port(self) -> int:
        assert self._socket is not None
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The public address, without a slash at its end."""
        if self._url:
            return self._url
        host = self._address[0]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self._certificate is not None else 'http'}://{shown}:{self.port}"

    def open(self) -> None:
        """Serve the page; connections that arrive before it is loaded wait for it."""
        if self._opening is None and self._socket is not None:
            self._socket.listen(64)
            self._opening = asyncio.get_running_loop().create_task(self._open(self._socket))
            self._opening.add_done_callback(_log_failure)

    async def _open(self, bound: socket.socket) -> None:
        # In a thread: loading takes a third of a second that would delay the event loop.
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


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("page: opening it failed", exc_info=task.exception())
