"""Allocation mode of each card: through the kubelet's device plugin, or through ResourceClaims.

The node's setting says by which one new work comes. A card that still has work of the other mode,
or was promised to a claim by the scheduler before the setting changed, is offered by neither until
that work has gone; so a node that is drained moves at once, and one that is not moves card by card.
The last mode is kept on disk: after a move away from claims nothing is offered until the
API server has said what is promised.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

from nodeagent.ports.dra.claims import DRIVER
from nodeagent.ports.dra.pool import ClaimStatus, Conflict, PoolAway
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.views import Finding
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import GpuUuid
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

PLUGIN: Final = "device-plugin"
CLAIMS: Final = "dra"
LOOK_S: Final = 2.0
"""Interval of polling the allocated claims, while there are any. Seconds."""


class Marker(Protocol):
    """The allocation mode that was used last; empty if there was none yet."""

    def read(self) -> str: ...
    def write(self, mode: str) -> None: ...


class AllocationModes:
    """Implements Endpoint."""

    def __init__(
        self,
        mode: str,
        marker: Marker,
        status: ClaimStatus | None,
        gpus: Gpus,
        fatal: Callable[[BaseException], None],
        prepared: Callable[[], Collection[GpuUuid]],
        allocated: Callable[[], Collection[GpuUuid]],
        changed: Callable[[], None],
    ) -> None:
        """`prepared`: GPUs of claims that the kubelet had prepared; `allocated`: of answers of the
        device plugin; `changed` is called when another card may be offered."""
        self.mode = mode
        self._marker = marker
        self._status = status
        self._gpus = gpus
        self._background = BackgroundTasks(fatal)
        self._prepared = prepared
        self._allocated = allocated
        self._changed = changed
        self._promised: frozenset[str] | None = None
        """Names of devices; None: not known yet."""
        self.trouble = ""
        last = marker.read()
        if mode == CLAIMS or last != CLAIMS:
            self._promised = frozenset()
            if last != mode:
                marker.write(mode)

    async def start(self) -> None:
        if self._promised is None:
            self._background.spawn(self._until_known(), "allocated ResourceClaims")

    async def close(self) -> None:
        await self._background.close()

    # --- questions ----------------------------------------------------------------------------

    def for_claims(self, gpu: GpuUuid) -> bool:
        return self.mode == CLAIMS and self._card(gpu) not in self._cards(self._allocated())

    def for_plugin(self, gpu: GpuUuid) -> bool:
        if self.mode == CLAIMS or self._promised is None:
            return False
        card = self._card(gpu)
        if card in self._cards(self._prepared()):
            return False
        here = {unit.uuid.lower() for unit in self._gpus.units() if card in unit_ids(unit)}
        return here.isdisjoint(self._promised) and not any(
            name.startswith(card.lower()) for name in self._promised
        )

    def _card(self, gpu: GpuUuid) -> GpuUuid:
        for unit in self._gpus.units():
            if unit.uuid == gpu and unit.mig_card is not None:
                return unit.mig_card
        return gpu

    def _cards(self, gpus: Collection[GpuUuid]) -> frozenset[GpuUuid]:
        if not gpus:
            return frozenset()
        cards = {unit.uuid: unit.mig_card or unit.uuid for unit in self._gpus.units()}
        return frozenset(cards.get(one, one) for one in gpus)

    def finding(self) -> Finding | None:
        """Finding for `sluice doctor`; None if there is nothing to report."""
        if self._promised is None:
            return Finding(
                "door",
                "missing",
                "the node's GPUs were allocated to claims before, and the allocated claims are not"
                f" known: {self.trouble or 'not read yet'}; nothing is offered until they are",
                "give the agent access to the API server until the node has moved"
                " (kubelet.kubeconfig, or the chart's service account)",
            )
        waits = sorted(unit.index for unit in self._gpus.units() if self._waits(unit.uuid))
        if not waits:
            return None
        other = "the device plugin" if self.mode == CLAIMS else "claims"
        return Finding(
            "door",
            "warning",
            f"GPUs {', '.join(map(str, waits))} have work allocated through {other} and are not"
            " offered until it has ended",
            "drain the node, or wait",
        )

    def _waits(self, gpu: GpuUuid) -> bool:
        return not (self.for_claims(gpu) if self.mode == CLAIMS else self.for_plugin(gpu))

    # --- what is promised ---------------------------------------------------------------------

    async def _until_known(self) -> None:
        """Polls until no claim is promised a device on this node any more."""
        while True:
            found = await self._look()
            if found is not None and found != self._promised:
                self._promised = found
                self._changed()
            if found is not None and not found:
                self._marker.write(self.mode)
                return
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> frozenset[str] | None:
        if self._status is None:
            self.trouble = "there is no access to the API server"
            return None
        try:
            claims = await self._status.promised()
        except (PoolAway, Conflict) as error:
            if str(error) != self.trouble:
                log.warning("dra: cannot list allocated ResourceClaims: %s", error)
            self.trouble = str(error)
            return None
        self.trouble = ""
        return frozenset(name for one in claims for name in _devices(one))


def _devices(claim: Mapping[str, Any]) -> list[str]:
    found = []
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        for one in claim["status"]["allocation"]["devices"]["results"]:
            if one["driver"] == DRIVER:
                found.append(str(one["device"]))
    return found


def unit_ids(unit: GpuReading) -> tuple[GpuUuid, ...]:
    """UUID of a card, or of an instance and its card."""
    return (unit.uuid,) if unit.mig_card is None else (unit.uuid, unit.mig_card)
