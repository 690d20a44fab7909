"""Status of a claim's devices in `status.devices`: the granted share of each, and the share of the
GPU's time that it used since the last measurement. Written when a claim is prepared, and again only
when a figure is wrong by more than a point: a busy node's figures move all the time, and every
write costs the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.core.dra.devices import mib
from nodeagent.ports.clock import Clock
from nodeagent.ports.dra.claims import DRIVER, ClaimState, ClaimUid, PreparedClaim
from nodeagent.ports.dra.pool import ClaimStatus, Conflict, PoolAway
from nodeagent.ports.ledger import GrantRecord
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.pods.dra.manager import ClaimManager
from nodeagent.units import NS_PER_S, GpuUuid, GrantId
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

POINTS: Final = 1.0
"""Percentage points by which a published figure may be wrong."""
FIRST_S: Final = 1.0
"""Delay after a claim is prepared, so that the write does not delay the kubelet. Seconds."""


@dataclass(frozen=True, slots=True)
class _Mark:
    at_ns: int
    consumed_ns: tuple[int, ...]


class ClaimStatusWriter:
    """Writes the status of this node's prepared claims. Implements Endpoint."""

    def __init__(
        self,
        manager: ClaimManager,
        keeper: Keeper,
        status: ClaimStatus,
        clock: Clock,
        every_s: float,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._manager = manager
        self._keeper = keeper
        self._status = status
        self._clock = clock
        self._every_s = every_s
        self._background = BackgroundTasks(fatal)
        self._marks: dict[GrantId, _Mark] = {}
        self._written: dict[ClaimUid, list[dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        self._trouble = ""
        self.writes_total = 0
        manager.on_change.append(self._changed.set)

    async def start(self) -> None:
        if self._every_s:
            self._background.spawn(self._loop(), "status of ResourceClaims")

    async def close(self) -> None:
        await self._background.close()

    async def _loop(self) -> None:
        next_s = self._now_s() + self._every_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - self._now_s())):
                    await self._changed.wait()
            if self._changed.is_set():
                self._changed.clear()
                await asyncio.sleep(FIRST_S)
            measured = self._now_s() >= next_s
            if measured:
                next_s = self._now_s() + self._every_s
            await self.write(measured)

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / NS_PER_S

    async def write(self, measured: bool) -> None:
        """Write the statuses that are out of date. `measured`: True if enough time has passed
        since the last measurement of GPU time for another one."""
        rows = [row for row in self._manager.prepared() if row.state is ClaimState.PREPARED]
        kept = {row.claim.uid for row in rows}
        for uid in self._written.keys() - kept:
            del self._written[uid]
        for row in rows:
            before = self._written.get(row.claim.uid)
            if before is not None and not measured:
                continue
            devices = self._devices(row, measured)
            if devices is None or (before is not None and _alike(before, devices)):
                continue
            try:
                await self._status.write(row.claim, devices)
            except Conflict:
                pass  # The claim was deleted, and will be released.
            except PoolAway as error:
                if str(error) != self._trouble:
                    log.warning("dra: cannot write the status of ResourceClaims: %s", error)
                self._trouble = str(error)
                return
            else:
                self._trouble = ""
                self.writes_total += 1
            self._written[row.claim.uid] = devices

    def _devices(self, row: PreparedClaim, measured: bool) -> list[dict[str, Any]] | None:
        """The status of each device of a claim; None if a grant of it has just ended."""
        if row.allocation is None:
            return None
        found = []
        for part in row.parts:
            held, opened = self._keeper.grant(part.grant), self._keeper.opened(part.grant)
            if held is None or opened is None or part.grant is None:
                return None
            consumed = tuple(
                opened.account.total(index).consumed_ns for index in range(len(held.record.devices))
            )
            used = self._used_percent(part.grant, consumed) if measured else None
            gpus: dict[GpuUuid | None, int] = {
                one.gpu: index for index, one in enumerate(held.record.devices)
            }
            for index in part.shares:
                share = row.allocation.shares[index]
                at = gpus.get(self._manager.gpu_of(share.device), 0)
                entry: dict[str, Any] = {
                    "driver": DRIVER,
                    "pool": share.pool,
                    "device": share.device,
                    "data": data(held.record, at, used[at] if used else None),
                }
                if share.share_id:
                    entry["shareID"] = share.share_id
                found.append(entry)
        return found

    def _used_percent(self, grant: GrantId, consumed: tuple[int, ...]) -> tuple[float, ...] | None:
        """Used share of each GPU's time since the last measurement, in percent."""
        now_ns = self._clock.monotonic_ns()
        mark, self._marks[grant] = self._marks.get(grant), _Mark(now_ns, consumed)
        for ended in self._marks.keys() - self._keeper.opens().keys():
            del self._marks[ended]
        if mark is None or now_ns <= mark.at_ns:
            return None
        return tuple(
            round(100 * max(0, now - was) / (now_ns - mark.at_ns), 1)
            for now, was in zip(consumed, mark.consumed_ns, strict=True)
        )


def data(record: GrantRecord, at: int, used_percent: float | None) -> dict[str, Any]:
    """Status data of one share."""
    device = record.devices[at]
    granted: dict[str, Any] = {
        "memory": mib(device.memory_bytes),
        "memoryBytes": device.memory_bytes,
        "cores": device.share_ppm / 10_000,
        "policy": record.policy.value,
        "priority": record.priority,
        "paused": record.paused,
    }
    if record.ceiling_ppm:
        granted["ceilingPercent"] = record.ceiling_ppm / 10_000
    found: dict[str, Any] = {"grant": record.grant, "gpu": device.gpu, "granted": granted}
    if used_percent is not None:
        found["achieved"] = {"cores": used_percent}
    return found


def _alike(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    if len(before) != len(now):
        return False
    for one, other in zip(before, now, strict=True):
        was, is_ = dict(one["data"]), dict(other["data"])
        before_ = was.pop("achieved", {}).get("cores")
        now_ = is_.pop("achieved", {}).get("cores")
        if was != is_ or one.get("shareID") != other.get("shareID"):
            return False
        if now_ is not None and (before_ is None or abs(now_ - before_) > POINTS):
            return False
    return True
