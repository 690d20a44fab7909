"""MIG through a child process with timeouts; see `mig_child`. Implements MigPort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from nodeagent.adapters.host.child_request import ChildFailed, ask_child
from nodeagent.ports.mig import MigEdit, MigOutcome, MigPlace, MigState, MigUnavailable
from nodeagent.units import GpuUuid
from sluicecommon.plain import read_plain, write_all_fields

CHILD: Final = "nodeagent.adapters.nvml.mig_child"
READ_DEADLINE_S: Final = 15.0
"""Seconds; includes the start of Python and of the driver, which loads its firmware when no process
has it open."""
CHANGE_DEADLINE_S: Final = 60.0
"""Seconds; a mode change takes seconds, each instance a part of one."""
LONGEST_ANSWER_BYTES: Final = 4 << 20


class ChildMig:
    def __init__(
        self, library: str, exclusive: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """While `exclusive` is held, no other process of ours has the driver open."""
        self._library = library
        self._exclusive = exclusive
        self._lock = asyncio.Lock()
        """Serialises reads and changes: a reader would be one more user of the card during a
        change."""

    async def states(self) -> tuple[MigState, ...]:
        async with self._lock:
            answer = await self._request({"do": "states"}, READ_DEADLINE_S)
        states: tuple[MigState, ...] = read_plain(tuple[MigState, ...], answer["states"])
        return states

    async def change(self, gpu: GpuUuid, wanted: tuple[str, ...] | None) -> MigOutcome:
        request = {"do": "change", "gpu": gpu, "wanted": wanted}
        async with self._lock, self._exclusive():
            answer = await self._request(request, CHANGE_DEADLINE_S)
        outcome: MigOutcome = read_plain(MigOutcome, answer["outcome"])
        return outcome

    async def edit(
        self, gpu: GpuUuid, remove: tuple[MigPlace, ...], make: MigPlace | None
    ) -> MigOutcome:
        edit = MigEdit(gpu, remove, make)
        async with self._lock, self._exclusive():
            answer = await self._request(
                {"do": "edit", "edit": write_all_fields(edit)}, CHANGE_DEADLINE_S
            )
        outcome: MigOutcome = read_plain(MigOutcome, answer["outcome"])
        return outcome

    async def _request(self, request: Any, deadline_s: float) -> Any:
        try:
            return await ask_child(
                CHILD, self._library, request, deadline_s, LONGEST_ANSWER_BYTES, "NVML"
            )
        except ChildFailed as failed:
            raise MigUnavailable(str(failed)) from None
