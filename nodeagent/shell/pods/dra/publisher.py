"""Keeps the node's ResourceSlices as they should be: after each reading of the GPUs, after each
change of the slices by any client, and when grants other than claims' change.

A write that is refused as a conflict ends the round; the watch reports the current slices, and the
next round starts from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.core.dra.pool import (
    Body,
    Delete,
    Put,
    Seen,
    bodies,
    digest,
    plan,
    read_slice,
    slice_name,
)
from nodeagent.ports.clock import Clock
from nodeagent.ports.dra.pool import Conflict, PoolAway, SliceStore
from nodeagent.shell.pods.dra.inventory import Inventory
from nodeagent.units import NS_PER_S
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

LOOK_S: Final = 0.4
"""Interval of polling for what others hold here, which is not notified. Seconds."""
AGAIN_S: Final = 1.0
"""Pause after the API server refused or did not answer. Seconds."""
COUNTLESS: Final = (
    "the API server drops sharedCounters; it needs the gate DRAPartitionableDevices (on from"
    " Kubernetes 1.36)"
)
QUIET_S: Final = 0.02
"""Changes come in groups: one write for all of them."""


class Publisher:
    """Implements Endpoint."""

    def __init__(
        self,
        node: str,
        inventory: Inventory,
        store: SliceStore,
        serves: Callable[[], bool],
        clock: Clock,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`serves`: whether this node gives GPUs to claims at all; else its slices go away."""
        self._node = node
        self._inventory = inventory
        self._store = store
        self._serves = serves
        self._clock = clock
        self._background = BackgroundTasks(fatal)
        self._sent: dict[str, tuple[str, str]] = {}
        self._changed = asyncio.Event()
        self._wanted: tuple[Body, ...] = ()
        self._since_ns: int | None = None
        """Time in ns since which the wanted slices differ from the written ones."""
        self.trouble = "not written yet"
        """Error for which the slices are outdated; empty if they are up to date."""
        self.writes_total = 0
        self.seconds: list[float] = []
        """Durations from a change to its last slice, the last thousand."""
        store.on_change(self.look_soon)

    async def start(self) -> None:
        self._background.spawn(self._loop(), "publishing of ResourceSlices")

    async def close(self) -> None:
        await self._background.close()

    def look_soon(self) -> None:
        self._changed.set()

    async def _loop(self) -> None:
        while True:
            waits_s = LOOK_S
            if self._store.synced:
                try:
                    await self._round()
                    self._say("")
                except Conflict as conflict:
                    log.debug("dra: slices: %s", conflict)
                except PoolAway as error:
                    self._say(str(error))
                    waits_s = AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(waits_s):
                    await self._changed.wait()
            if self._changed.is_set():
                self._changed.clear()
                await asyncio.sleep(QUIET_S)

    def _say(self, trouble: str) -> None:
        """Once for each trouble."""
        if trouble and trouble != self.trouble:
            log.warning("dra: cannot write ResourceSlices: %s", trouble)
        self.trouble = trouble

    def wanted(self) -> tuple[Body, ...]:
        if not self._serves():
            return ()
        return bodies(*self._inventory.published())

    def _seen(self) -> dict[str, Seen]:
        found = {}
        for name, document in self._store.documents().items():
            try:
                found[name] = read_slice(document)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise PoolAway(f"slice {name} cannot be read: {error!r}") from error
        return found

    def _lost_counters(self, wanted: Sequence[Body], seen: Mapping[str, Seen]) -> bool:
        """They were sent, and the API server has the slice without them: then it would give
        places away that overlap."""
        for number, body in enumerate(wanted):
            name = slice_name(self._node, number)
            sent, one = self._sent.get(name), seen.get(name)
            if body.counters and sent is not None and one is not None and not one.body.counters:
                return sent == (digest(body, one.generation), one.version)
        return False

    async def _round(self) -> None:
        wanted = self.wanted()
        if wanted != self._wanted:
            self._wanted = wanted
            self._since_ns = self._clock.monotonic_ns()
        seen = self._seen()
        if self._lost_counters(wanted, seen):
            self._inventory.countless = True
            log.warning("dra: no place for a MIG instance is published: %s", COUNTLESS)
            wanted = self._wanted = self.wanted()
        writes: Sequence[Put | Delete] = plan(
            self._node, self._store.node_uid, wanted, seen, self._sent
        )
        for write in writes:
            match write:
                case Put(name, version, document, digest):
                    now = await self._store.put(name, version, document)
                    self._sent[name] = (digest, now)
                case Delete(name, uid):
                    await self._store.delete(name, uid)
                    self._sent.pop(name, None)
            self.writes_total += 1
        if self._since_ns is not None:
            taken_s = (self._clock.monotonic_ns() - self._since_ns) / NS_PER_S
            self._since_ns = None
            if writes:
                self.seconds.append(taken_s)
                del self.seconds[:-1000]
                log.info(
                    "dra: %d devices in %d slices published, %.0f ms after the change",
                    sum(len(one.devices) for one in wanted),
                    len(wanted),
                    taken_s * 1000,
                )
