"""HTTP for scrapes and probes: GET and HEAD, one request per connection, 2 s for all of it.

The server listens from the start; aiohttp is loaded when the first client connects, so that a
service that is neither scraped nor probed does not load it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from sluicecommon.web.answers import LONGEST_REQUEST_BYTES, Responder
from sluicecommon.web.clients import Client, Clients
from sluicecommon.web.listener import Certificate, Limits, Listener

log = logging.getLogger(__name__)

REQUEST_S: Final = 2.0
"""Longest connection, from its acceptance to the last byte of the answer."""


class GetServer:
    """A listener whose requests are answered by a function that does not block."""

    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        answer: Responder,
        certificate: Certificate | None = None,
    ) -> None:
        """`setting` names the address in messages."""
        self._setting = setting
        self._address = address
        self._answer = answer
        self._make: Callable[[], asyncio.Protocol] | None = None
        self.clients = Clients()
        limits = Limits(REQUEST_S, REQUEST_S, LONGEST_REQUEST_BYTES)
        self._listener = Listener(self.protocol, self.clients, limits, certificate)

    async def start(self) -> None:
        """Listen. Raises OSError if the address is in use."""
        await self._listener.start(self._setting, self._address)
        log.info("%s: port %d", self._setting, self.port)

    @property
    def port(self) -> int:
        return self._listener.port

    async def close(self) -> None:
        self._listener.stop()
        self.clients.drop_all()

    async def protocol(self, _client: Client | None = None) -> asyncio.Protocol:
        """A protocol for one connection."""
        if self._make is None:
            # In a thread: loading takes a third of a second that would delay the event loop.
            loaded = await asyncio.to_thread(_load)
            self._make = self._make or loaded(self._answer)
        return self._make()


def _load() -> Callable[[Responder], Callable[[], asyncio.Protocol]]:
    from sluicecommon.web.get_protocol import protocols

    return protocols
