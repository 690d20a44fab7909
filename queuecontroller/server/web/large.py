"""Large reviews, parsed in a child process: a parser holds Python's lock for all of it, and what it
makes of a few megabytes may be fifty times as large.

One at a time. The child stays for the next one and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import sys
from typing import Final

from queuecontroller.server.web.posts import Response, refused

MAX_WAITING: Final = 8
ANSWER_S: Final = 20.0
"""Timeout of one review; API servers wait for 30 s at most."""
IDLE_S: Final = 60.0
"""An unused child ends after so long."""
HEAD: Final = struct.Struct("!BQ")
"""A number and the length of what follows: of a request, its kind and body; of an answer, its
status and text."""
ANSWERED: Final = 0
BAD: Final = 1
GO_ON: Final = 2
"""The review is not too large for the caller to answer it."""
_log: Final = logging.getLogger(__name__)


class LargeReviews:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._child: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def read(self, path: str, body: bytes) -> Response | None:
        """The answer to a review; None if the caller is to answer it itself."""
        if self._waiting >= MAX_WAITING:
            return refused(503, "too many large reviews at a time: try again")
        self._waiting += 1
        try:
            async with asyncio.timeout(ANSWER_S), self._lock:
                return await self._read(path.encode(), body)
        except TimeoutError:
            return refused(503, f"timed out after {ANSWER_S:g} s: a large review")
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        child, self._child = self._child, None
        if self._idle is not None:
            self._idle.cancel()
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _read(self, path: bytes, body: bytes) -> Response | None:
        is_whole = False
        try:
            child = await self._started()
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(HEAD.pack(len(path), len(body)) + path)
            child.stdin.write(body)
            await child.stdin.drain()
            status, length = HEAD.unpack(await child.stdout.readexactly(HEAD.size))
            text = await child.stdout.readexactly(length)
            is_whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            _log.warning("webhooks: a review of %d bytes exceeded the limits", len(body))
            return refused(413, "the review needs more memory or time than permitted")
        finally:
            if not is_whole:
                await self.close()
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle, child)
        if status == GO_ON:
            return None
        return Response(text) if status == ANSWERED else refused(400, text.decode())

    async def _started(self) -> asyncio.subprocess.Process:
        if self._idle is not None:
            self._idle.cancel()
        if self._child is None or self._child.returncode is not None:
            isolated = ("-I",) if sys.flags.isolated else ()
            words = (*isolated, "-m", "queuecontroller.server.web.large_child")
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
            )
        return self._child

    def _end_idle(self, child: asyncio.subprocess.Process) -> None:
        if child.stdin is not None and not self._lock.locked():
            child.stdin.close()
            if self._child is child:
                self._child = None
