"""Lends memory that is guaranteed to no grant, and takes back the part that borrowers do not use as
soon as a grant is requested; see `core/grants/lending.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.lending import Beginnings, Borrower, lend, taken_back
from nodeagent.core.grants.placement import GpuCapacity, Load
from nodeagent.ports.clock import Clock
from nodeagent.ports.ledger import GrantState, Spill
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.units import NS_PER_S, Bytes, GpuUuid, GrantId
from sluicecommon.background import BackgroundTasks

EVERY_S: Final = 1.0
"""A borrower that was just made has what is free a second later at most."""


class Lender:
    """An Endpoint of the daemon."""

    def __init__(
        self,
        keeper: Keeper,
        capacities: Callable[[], Sequence[GpuCapacity]],
        fatal: Callable[[BaseException], None],
        clock: Clock,
        pause_s: float,
    ) -> None:
        """`pause_s`: how long a process is new, in which its grant's memory does not change."""
        self._keeper = keeper
        self._capacities = capacities
        self._background = BackgroundTasks(fatal)
        self._clock = clock
        self._pause_ns = int(pause_s * NS_PER_S)
        self._beginnings: dict[GrantId, Beginnings] = {}
        keeper.before_ask.append(self.take_back)
        keeper.after_ask.append(self.look)

    async def start(self) -> None:
        self._background.spawn(self._run(), "lending")

    async def close(self) -> None:
        await self._background.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Take memory back while a request waits, else lend, once."""
        if self._keeper.waiting():
            self.take_back()
        else:
            self._lend()

    def take_back(self) -> None:
        """Takes back lent memory that is not allocated. What a tenant allocates meanwhile stays
        lent to it."""
        for _ in range(2):
            shall: dict[GrantId, dict[GpuUuid, Bytes]] = {}
            for one in self._borrowers():
                shall.setdefault(one.grant, {})[one.gpu] = taken_back(one)
            self._apply(shall)

    def _lend(self) -> None:
        borrowers = self._borrowers()
        self._beginnings = {one.grant: self._beginnings[one.grant] for one in borrowers}
        if not borrowers:
            return
        loads = self._keeper.loads()
        shall: dict[GrantId, dict[GpuUuid, Bytes]] = {}
        for gpu in self._capacities():
            here = [one for one in borrowers if one.gpu == gpu.uuid]
            free = gpu.memory_bytes - loads.get(gpu.uuid, Load()).memory_bytes
            for grant, bytes_ in lend(max(0, free), here).items():
                shall.setdefault(grant, {})[gpu.uuid] = bytes_
        self._apply(shall)
        for one in self._beginnings.values():
            one.lent()

    def _apply(self, shall: dict[GrantId, dict[GpuUuid, Bytes]]) -> None:
        for grant, by_gpu in shall.items():
            held = self._keeper.grant(grant)
            if held is not None:
                devices = held.record.devices
                wanted = tuple(by_gpu.get(one.gpu, one.memory_bytes) for one in devices)
                self._keeper.apply(ev.Lent(grant, wanted))

    def _borrowers(self) -> list[Borrower]:
        found = []
        for grant, held in list(self._keeper.live().items()):
            record, opened = held.record, self._keeper.opened(grant)
            if opened is None or record.state is not GrantState.ACTIVE:
                continue
            if record.spill is not Spill.RESIDENT:
                continue
            borrows = [one.limit_bytes is not None for one in record.devices]
            if not any(borrows):
                continue
            self._keeper.look(grant, opened)
            beginnings = self._beginnings.setdefault(grant, Beginnings(self._pause_ns))
            processes = [(one.pid, one.starttime_ticks) for one in held.slots.values()]
            fixed, kept = beginnings.look(self._clock.monotonic_ns(), processes)
            for index, device in enumerate(record.devices):
                if borrows[index]:
                    found.append(
                        Borrower(
                            grant,
                            device.gpu,
                            record.priority,
                            record.created_unix_s,
                            device.guaranteed_bytes,
                            device.most_bytes,
                            device.memory_bytes,
                            opened.account.total(index).charged_bytes,
                            fixed,
                            kept,
                        )
                    )
        return found
