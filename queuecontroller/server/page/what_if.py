"""What-if: runs `simulate` in a separate process at the lowest priority, one at a time and with a
timeout, so that it does not slow down the queue. A viewer has one at a time, running or waiting, so
that no viewer blocks the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from sluicecommon.web.page import Refusal

LONGEST_S: Final = 30.0
MAX_VIEWERS: Final = 8
"""What-ifs that run or wait, each of which holds a copy of the queue's objects."""
LARGEST_ANSWER: Final = 32 << 20
LONGEST_WHY: Final = 4_000


class WhatIfRunner:
    def __init__(self) -> None:
        self._busy = asyncio.Lock()
        self._viewers: set[str] = set()
        """Viewers whose what-if runs or waits."""

    async def play(self, viewer: str, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The report of `simulate` for a viewer. Raises Refusal."""
        if viewer in self._viewers:
            raise Refusal(429, "your other what-if is still running: try again in a moment")
        if len(self._viewers) >= MAX_VIEWERS:
            raise Refusal(429, "other what-ifs are running: try again in a moment")
        self._viewers.add(viewer)
        try:
            async with self._busy:
                return await self._play(json.dumps(documents_list(documents)).encode())
        finally:
            self._viewers.discard(viewer)

    async def _play(self, text: bytes) -> dict[str, Any]:
        words = ("-m", "queuecontroller", "simulate", "-f", "-", "-o", "json")
        # `nice` and no preexec_fn: between fork and exec a process with gRPC's threads can die.
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "19", sys.executable, *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(LONGEST_S):
                out, error = await process.communicate(text)
        except TimeoutError:
            raise Refusal(
                504, f"timed out after {LONGEST_S:g} s: use `sluice-queue simulate`"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            why = error.decode(errors="replace")[:LONGEST_WHY].strip()
            raise Refusal(422, why or f"simulate exited with status {process.returncode}")
        if len(out) > LARGEST_ANSWER:
            raise Refusal(413, "the report is too large for a page: use `sluice-queue simulate`")
        found = json.loads(out)
        assert isinstance(found, dict), "a report is an object"
        return found


def documents_list(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The documents as one List, which is parsed faster than many documents."""
    return {"apiVersion": "v1", "kind": "List", "items": list(documents)}
