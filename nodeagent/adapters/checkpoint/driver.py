"""Checkpoints through a child process with a deadline; see `child`. Implements Checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nodeagent.adapters.checkpoint.child import OUT_OF_MEMORY
from nodeagent.adapters.host.child_request import ChildFailed, ask_child
from nodeagent.ports.driver.checkpoint import (
    CheckpointFailed,
    CheckpointState,
    CheckpointStep,
)
from nodeagent.ports.processes import Process

CHILD: Final = "nodeagent.adapters.checkpoint.child"
START_S: Final = 10.0
"""Seconds; the start of Python, and of the driver if no process has it open."""
LONGEST_ANSWER_BYTES: Final = 1 << 20


class ChildCheckpoints:
    def __init__(self, library: str) -> None:
        """The driver's library; empty: as the loader finds it."""
        self._library = library

    async def missing(self) -> str:
        return str((await self._request({"do": "missing"}, START_S))["missing"])

    async def states(self, processes: Sequence[Process]) -> list[CheckpointState]:
        if not processes:
            return []
        answer = await self._request({"do": "states", "processes": _named(processes)}, START_S)
        return [CheckpointState(one) for one in answer["states"]]

    async def take(self, step: CheckpointStep, processes: Sequence[Process], each_s: float) -> None:
        if not processes:
            return
        request = {
            "do": step.value,
            "processes": _named(processes),
            "timeout_ms": max(1, int(each_s * 1000)),
        }
        # A lock has its own timeout; the driver gets one more second to report that it expired.
        await self._request(request, START_S + len(processes) * (each_s + 1.0))

    async def _request(self, request: Any, deadline_s: float) -> Any:
        try:
            return await ask_child(
                CHILD, self._library, request, deadline_s, LONGEST_ANSWER_BYTES, "the driver"
            )
        except ChildFailed as failed:
            reason = f"{request['do']}: {failed}" if not failed.answer else str(failed)
            raise CheckpointFailed(reason, failed.answer.get("code") == OUT_OF_MEMORY) from None


def _named(processes: Sequence[Process]) -> list[tuple[int, int]]:
    return [(one.pid, one.starttime_ticks) for one in processes]
