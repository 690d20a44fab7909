"""The GPUs as last read: inventory, health, and how old the reading is."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from nodeagent.core.health import OFFERED, Health, Patient, examine
from nodeagent.core.placement import GpuCapacity
from nodeagent.ports import GpuReading, NodeReading
from nodeagent.units import MIB, Bytes, GpuUuid

log = logging.getLogger(__name__)


class Gpus:
    def __init__(
        self, slots_per_gpu: int, memory_reserve_mib: int, memory_scaling: float = 1.0
    ) -> None:
        """`memory_scaling`: bytes promised for each byte of a card's; over 1 is overcommit."""
        self._slots = slots_per_gpu
        self._scaling = memory_scaling
        self._reserve_bytes = memory_reserve_mib * MIB
        self.readings: dict[GpuUuid, GpuReading] = {}
        self._patients: dict[GpuUuid, Patient] = {}
        self.driver_version: str | None = None
        self.error: str | None = "not read yet"
        self.nvml_version: str | None = None
        self.xids: dict[GpuUuid, Counter[int]] = {}
        self.last_xid: dict[GpuUuid, int] = {}
        self.read_at_ns: int | None = None
        """CLOCK_MONOTONIC of the last good pass."""
        self.on_read: list[Callable[[], None]] = []
        """Called after every pass."""

    def take(self, reading: NodeReading, now_ns: int) -> None:
        if reading.error != self.error and reading.error is not None:
            log.warning("the GPUs cannot be read: %s", reading.error)
        self.error = reading.error
        if reading.error is None:
            self.read_at_ns = now_ns
            if self.driver_version not in (None, reading.driver_version):
                log.warning(
                    "the driver was %s and is %s now", self.driver_version, reading.driver_version
                )
            self.driver_version = reading.driver_version
            self.nvml_version = reading.nvml_version
        for gpu, code in reading.xid_events:
            self.xids.setdefault(gpu, Counter())[code] += 1
            self.last_xid[gpu] = code
        seen = {card.uuid: card for card in reading.gpus}
        for uuid in self.readings.keys() | seen.keys():
            now: GpuReading | None = seen.get(uuid)
            if reading.error is not None:  # nothing was read: that says little about any one GPU
                now = replace(self.readings[uuid], error="the node could not be read")
            xids = tuple(code for one, code in reading.xid_events if one == uuid)
            before = self._patients.get(uuid, Patient())
            after = examine(before, now, xids)
            self._patients[uuid] = after
            if after.health is not before.health:
                log.warning("GPU %s: %s, was %s", uuid, after.health.value, before.health.value)
            if now is not None and now.error is None:
                self.readings[uuid] = now
        for call in self.on_read:
            call()

    def health(self, uuid: GpuUuid) -> Health:
        return self._patients.get(uuid, Patient()).health

    def sorted(self) -> Sequence[GpuReading]:
        return sorted(self.readings.values(), key=lambda gpu: gpu.index)

    def capacities(self) -> tuple[GpuCapacity, ...]:
        return tuple(
            GpuCapacity(
                uuid=gpu.uuid,
                index=gpu.index,
                name=gpu.name,
                memory_bytes=self._grantable(gpu.memory_total_bytes),
                physical_bytes=gpu.memory_total_bytes,
                slots=self._slots,
                healthy=self.health(gpu.uuid) in OFFERED,
            )
            for gpu in self.sorted()
        )

    def _grantable(self, total: Bytes) -> Bytes:
        return Bytes(max(0, int(total * self._scaling) - self._reserve_bytes))
