"""Reads PodResources only while the kubelet waits for no answer of ours to Allocate.

Each List of PodResources frees the devices of pods that have ended, and the kubelet then counts
what is in use by its finished allocations alone: a device that it has reserved for an Allocate
under way is free again, and the next pod gets it, too (ManagerImpl.UpdateAllocatedDevices, seen
with Kubernetes 1.36). A kubelet whose node has no allocatable devices any more rejects the pod of
such an Allocate for good. So a container that starts is looked up by its pod's name, which frees
nothing; a List is for a kubelet without that call, for pods without a known name, and for finding
stale allocations. Delays do not cover a List of ours that is under way when the kubelet reserves,
nor Lists of other programs: core/kubelet/identity.py starts both pods then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from nodeagent.ports.kubelet import Checkpoint, KubeletRecords, Listing

STORED_S: Final = 0.2
"""Time from our answer until the kubelet has stored it, with a margin. Seconds."""
LONGEST_S: Final = 3.0
"""Longest delay of a List, in seconds: pods that start wait for it."""


class UndisturbedRecords:
    """Implements KubeletRecords."""

    def __init__(self, records: KubeletRecords) -> None:
        self._records = records
        self._answering = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def checkpoint(self) -> Checkpoint:
        return self._records.checkpoint()

    async def listings(self) -> list[Listing]:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while self._answering:
                    await self._idle.wait()
        return await self._records.listings()

    async def listings_of(self, namespace: str, name: str) -> list[Listing]:
        return await self._records.listings_of(namespace, name)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Delay Lists while the body makes an answer, and until the kubelet has stored it."""
        self._answering += 1
        self._idle.clear()
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(STORED_S, self._stored)

    def _stored(self) -> None:
        self._answering -= 1
        if not self._answering:
            self._idle.set()
