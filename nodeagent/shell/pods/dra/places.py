"""The MIG instances of claims: from the name of a place in a slice to the instance that is there,
made if need be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Final

from nodeagent.core.dra.partitions import Partition, partitions
from nodeagent.core.gpus.cuts import NoRoom, NoSuchProfile
from nodeagent.ports.clock import Clock
from nodeagent.ports.dra.claims import ClaimAllocation, ClaimRef, NotPrepared
from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.mig import MigUnavailable
from nodeagent.shell.gpus.cuts import Cuts, MigWish
from nodeagent.units import NS_PER_S, GpuUuid, GrantId

ROOM_S: Final = 5.0
"""How long a claim waits for a place that the scheduler counts as free: the processes of the one
that had it before may still be ending."""
LOOK_S: Final = 0.5
"""Interval of polling, each of which calls the driver. Seconds."""


class Places:
    def __init__(self, cuts: Cuts | None, clock: Clock) -> None:
        """`cuts` None: instances are cut by hand alone."""
        self._cuts = cuts
        self._clock = clock

    def all(self) -> dict[str, Partition]:
        """Places by name of the device, published or not."""
        if self._cuts is None:
            return {}
        return {
            one.name: one
            for state in self._cuts.cards.values()
            for one in partitions(state.gpu, state.profiles)
        }

    def of(self, allocation: ClaimAllocation) -> dict[str, Partition]:
        """Places of a claim, by name."""
        known = self.all()
        return {one.device: known[one.device] for one in allocation.shares if one.device in known}

    def gpu_of(self, device: str) -> GpuUuid | None:
        """The instance that is at that place now."""
        partition = self.all().get(device)
        if partition is None or self._cuts is None:
            return None
        return self._cuts.instance_at(partition.card, partition.place)

    async def cut(
        self,
        promised: contextlib.AsyncExitStack,
        allocation: ClaimAllocation,
        own: Collection[GrantId],
    ) -> dict[str, GpuUuid]:
        """The instances at a claim's places, promised to it until `promised` ends. `own`: grants
        that it has on them already. Raises NotPrepared, LedgerLost."""
        found = {}
        for name, partition in self.of(allocation).items():
            found[name] = await self._one(promised, allocation.claim, name, partition, own)
        return found

    async def _one(
        self,
        promised: contextlib.AsyncExitStack,
        claim: ClaimRef,
        name: str,
        partition: Partition,
        own: Collection[GrantId],
    ) -> GpuUuid:
        assert self._cuts is not None
        place = partition.place
        wish = MigWish(place.profile, partition.card, (place.span,))
        end_ns = self._clock.monotonic_ns() + int(ROOM_S * NS_PER_S)
        while True:
            try:
                return await promised.enter_async_context(
                    self._cuts.instance(wish, f"claim {claim}", own)
                )
            except (NoRoom, MigUnavailable, LedgerFull) as error:
                late = self._clock.monotonic_ns() >= end_ns
                if late or not isinstance(error, NoRoom) or isinstance(error, NoSuchProfile):
                    raise NotPrepared(f"{name}: {error}") from None
            await asyncio.sleep(LOOK_S)
