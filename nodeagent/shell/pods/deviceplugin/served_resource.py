"""The devices offered under one resource name, and the calls of its device plugin server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from nodeagent.core.kubelet.offers import Offer
from nodeagent.ports.containers import ContainerAnswer
from nodeagent.ports.kubelet import PreferenceAsk, SlotDevice, SlotId


class Allocator(Protocol):
    """Calls that are served for all resources alike."""

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]: ...

    async def allocate(
        self, resource: str, requests: Sequence[Sequence[str]]
    ) -> list[ContainerAnswer]: ...

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None: ...


class ServedResource:
    """Devices offered under one resource name; implements PluginService."""

    def __init__(self, manager: Allocator, resource: str) -> None:
        self.resource = resource
        self.shown: tuple[Offer, ...] = ()
        self._manager = manager
        self._devices: tuple[SlotDevice, ...] = ()
        self._change = asyncio.Event()

    def show(self, offers: tuple[Offer, ...]) -> None:
        """All slots of a GPU have its health: the kubelet counts each for itself."""
        if offers != self.shown:
            self.shown = offers
            self._devices = tuple(
                SlotDevice(str(SlotId(one.gpu, number)), one.healthy, one.numa_node)
                for one in offers
                for number in range(one.first, one.first + one.slots)
            )
            self._change.set()
            self._change = asyncio.Event()

    def devices(self) -> tuple[SlotDevice, ...]:
        return self._devices

    async def watch(self) -> AsyncGenerator[tuple[SlotDevice, ...], None]:
        while True:
            change, devices = self._change, self._devices
            yield devices
            await change.wait()

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]:
        return self._manager.prefer(ask)

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        return await self._manager.allocate(self.resource, requests)

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        await self._manager.pre_start(self.resource, device_ids)
