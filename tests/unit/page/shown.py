"""A page's backend with one board, and a server of it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from sluicecommon.page.board import Board, Frames, Sight
from sluicecommon.web.page import PageServer, Refusal, Viewer

ALL = Sight(frozenset({"Node"}), None)


class Shown:
    """A backend with one board, which every viewer sees."""

    site = "queue"
    takes_tokens = True
    why_not_ready = ""

    def __init__(self) -> None:
        self.ended = False
        self.board = Board("i")
        self.frames: Frames | None = Frames(self.board)

    def start(self) -> None: ...
    async def close(self) -> None: ...
    async def enter(self, secret: str) -> str:
        return secret

    async def viewer(self, credential: str) -> Viewer:
        if self.ended:
            raise Refusal(401, "over")
        return Viewer(credential, ALL)

    def leave(self, credential: str) -> None: ...
    def watched(self, viewers: int) -> None: ...
    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any: ...
    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any: ...


@asynccontextmanager
async def serving(shown: Shown) -> AsyncIterator[PageServer]:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    server = PageServer(bound, shown)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
