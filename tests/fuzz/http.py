"""Bytes to a GetServer and to a PostServer, as a connection would bring them, without a socket."""

from __future__ import annotations

import asyncio

from queuecontroller.server.web.posts import PostServer
from sluicecommon.web.get_server import GetServer


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: object) -> None:
        for one in list_of_data:  # type: ignore[attr-defined]
            self.write(one)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Connections:
    """One loop for many inputs."""

    def __init__(self, server: GetServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()

    def reply(self, data: bytes) -> bytes:
        """Everything that is answered to `data`; empty where it is not a whole request."""
        return self._loop.run_until_complete(self._reply(data))

    async def _reply(self, data: bytes) -> bytes:
        protocol, transport = await self._server.protocol(), _Transport()
        protocol.connection_made(transport)
        protocol.data_received(data)
        for _ in range(8):  # turns of the loop: its tasks wait for nothing else
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        for _ in range(4):
            await asyncio.sleep(0)
        return bytes(transport.written)


class Posts:
    """One loop for many inputs to a PostServer, each of them a connection."""

    def __init__(self, server: PostServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()

    def reply(self, data: bytes) -> bytes:
        """Everything that is answered to `data`, which arrives in two parts."""
        return self._loop.run_until_complete(self._reply(data))

    async def _reply(self, data: bytes) -> bytes:
        transport = _Transport()
        client = self._server.clients.enter("10.0.0.1", transport.abort)
        protocol = await self._server.protocol(client)
        protocol.connection_made(transport)
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            protocol.data_received(part)
        self._server.clients.leave(client)
        protocol.connection_lost(None)
        assert self._server.bytes == 0, "what was counted is given back"
        return bytes(transport.written)
