"""An NVML with GPUs made to order."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from nodeagent.ports.gpus import GpuReading, NodeReading
from nodeagent.units import GIB, Bytes, GpuUuid


def gpu_reading(index: int, memory_bytes: int = 80 * GIB) -> GpuReading:
    return GpuReading(
        uuid=GpuUuid(f"GPU-{index:08x}-1111-2222-3333-444444444444"),
        index=index,
        name="Fake H100 80GB",
        memory_total_bytes=Bytes(memory_bytes),
        memory_used_bytes=Bytes(0),
        sm_count=132,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        numa_node=index % 2,
        utilization_ratio=0.25,
        temperature_celsius=41.0,
        power_watts=120.5,
    )


class FakeNvml:
    def __init__(self, gpus: Sequence[GpuReading]) -> None:
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self.hung = False
        self.xids: list[tuple[GpuUuid, int]] = []
        self.restarts_total = 0
        self.refreshes = 0

    def lose(self, uuid: GpuUuid) -> None:
        self.gpus[uuid] = replace(self.gpus[uuid], error="GPU is lost")

    async def read(self) -> NodeReading:
        if self.hung:
            self.restarts_total += 1
            return NodeReading(error="NVML timed out after 3 s")
        xids, self.xids = tuple(self.xids), []
        return NodeReading(tuple(self.gpus.values()), "999.1", "12.999", xids)

    async def refresh(self) -> None:
        self.refreshes += 1

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        self.refreshes += 1
        yield

    @contextlib.asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        yield

    async def close(self) -> None:
        return None
