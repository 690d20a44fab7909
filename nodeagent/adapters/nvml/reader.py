"""NVML through a child process with a deadline: a driver that hangs costs us a reading, never
the daemon.

A child that misses its deadline is killed; the next one is started after a pause that doubles
from 1 s to 60 s, so that a broken driver is not hammered. Everything above sees readings with
their age.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Final

from nodeagent.adapters.host.children import python_child
from nodeagent.adapters.nvml.wire import decode
from nodeagent.ports.clock import Clock
from nodeagent.ports.gpus import NodeReading
from nodeagent.units import NS_PER_S

log = logging.getLogger(__name__)

START_DEADLINE_S: Final = 15.0
"""The first reading includes starting Python and the driver, which loads its firmware when
nobody held it open."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LONGEST_ANSWER_BYTES: Final = 4 << 20
"""16 GPUs with thousands of processes each."""


class ChildNvml:
    def __init__(self, library: str, deadline_s: float, clock: Clock) -> None:
        self._library = library
        self._deadline_s = deadline_s
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None
        self._fresh = True
        self._pause_s = FIRST_PAUSE_S
        self._not_before_ns = 0
        self._last_error = ""
        self._turn = asyncio.Lock()
        """Held while the child is asked, and while it must not be there."""
        self.restarts_total = 0

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def read(self) -> NodeReading:
        async with self._turn:
            return await self._read()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        async with self._turn:
            await self.refresh()
            yield

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        """For another process of ours that asks the driver beside this one: nobody has, or is
        given, the driver for himself meanwhile."""
        async with self._turn:
            yield

    async def _read(self) -> NodeReading:
        if self._child is None or self._child.returncode is not None:
            if self._clock.monotonic_ns() < self._not_before_ns:
                return NodeReading(error=self._last_error)
            if self._child is not None:  # somebody ended it between two readings
                log.warning("NVML: its reader ended with %s; started again", self._child.returncode)
                self.restarts_total += 1
            await self._start()
        deadline_s = START_DEADLINE_S if self._fresh else self._deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                reading = await self._exchange()
        except TimeoutError:
            return await self._fail(f"it did not answer within {deadline_s:g} s")
        except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
            return await self._fail(f"its reader ended: {error or type(error).__name__}")
        if (
            reading.error is not None
        ):  # a driver that was replaced needs a process that maps the new
            return await self._fail(reading.error)
        self._fresh = False
        self._pause_s = FIRST_PAUSE_S
        self._last_error = ""
        return reading

    async def refresh(self) -> None:
        """GPUs came or went: NVML sees that only when it is started again."""
        self._pause_s = FIRST_PAUSE_S
        self._not_before_ns = 0
        await self.close()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        with contextlib.suppress(TimeoutError):  # in the driver, uninterruptible: init will reap it
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            async with asyncio.timeout(1.0):
                await child.wait()

    async def _start(self) -> None:
        arguments = [self._library] if self._library else []
        self._child = await asyncio.create_subprocess_exec(
            *python_child("nodeagent.adapters.nvml.child", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_ANSWER_BYTES,
        )
        self._fresh = True

    async def _exchange(self) -> NodeReading:
        child = self._child
        assert child is not None
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"read\n")
        await child.stdin.drain()
        line = await child.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError("no answer")
        return decode(line)

    async def _fail(self, reason: str) -> NodeReading:
        if reason != self._last_error:
            log.warning("NVML: %s; its reader is started again in %g s", reason, self._pause_s)
        self._last_error = reason
        self._not_before_ns = self._clock.monotonic_ns() + int(self._pause_s * NS_PER_S)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        self.restarts_total += 1
        await self.close()
        return NodeReading(error=reason)
