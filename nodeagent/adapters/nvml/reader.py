"""NVML through a child process with timeouts: a driver that hangs costs a reading, never the
daemon.

A child that exceeds its timeout is killed; the next one is started after a pause that doubles from
1 s to 60 s, so that a broken driver is not hammered. Callers see readings with their age.
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
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

START_DEADLINE_S: Final = 15.0
"""Seconds; the first reading includes starting Python and the driver, which loads its firmware when
no process has it open."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LONGEST_ANSWER_BYTES: Final = 4 << 20
"""Room for 16 GPUs with thousands of processes each."""


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
        self._lock = asyncio.Lock()
        """Held during a request to the child, and while the child must not exist."""
        self.restarts_total = 0

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def read(self) -> NodeReading:
        async with self._lock:
            return await self._read()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        async with self._lock:
            await self.refresh()
            yield

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        """Shared access for another process of ours that uses the driver beside the child; excludes
        `exclusive()`."""
        async with self._lock:
            yield

    async def _read(self) -> NodeReading:
        if self._child is None or self._child.returncode is not None:
            if self._clock.monotonic_ns() < self._not_before_ns:
                return NodeReading(error=self._last_error)
            if self._child is not None:  # It was killed between two readings.
                log.warning(
                    "NVML: reader exited with status %s; restarting it", self._child.returncode
                )
                self.restarts_total += 1
            await self._start()
        deadline_s = START_DEADLINE_S if self._fresh else self._deadline_s
        try:
            async with asyncio.timeout(deadline_s):
                reading = await self._exchange()
        except TimeoutError:
            return await self._fail(f"timed out after {deadline_s:g} s")
        except (OSError, ValueError, TypeError, KeyError, EOFError) as error:
            return await self._fail(f"reader ended: {error_text(error)}")
        # A driver that was replaced needs a process that maps the new library.
        if reading.error is not None:
            return await self._fail(reading.error)
        self._fresh = False
        self._pause_s = FIRST_PAUSE_S
        self._last_error = ""
        return reading

    async def refresh(self) -> None:
        """Start a new child, because NVML sees added and removed GPUs only after it is initialised
        again."""
        self._pause_s = FIRST_PAUSE_S
        self._not_before_ns = 0
        await self.close()

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        with contextlib.suppress(TimeoutError):
            # It is in the driver, uninterruptible; init reaps it.
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
            log.warning("NVML: %s; restarting the reader in %g s", reason, self._pause_s)
        self._last_error = reason
        self._not_before_ns = self._clock.monotonic_ns() + int(self._pause_s * NS_PER_S)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        self.restarts_total += 1
        await self.close()
        return NodeReading(error=reason)
