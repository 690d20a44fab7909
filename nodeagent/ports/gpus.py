"""GPUs as NVML reads them, and the port it comes through. `None` always means "not reported"."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

from nodeagent.units import (
    Bytes,
    GpuUuid,
)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process with a context on one GPU."""

    pid: int
    memory_bytes: Bytes | None = None
    sm_ratio: float | None = None
    """Part of its last sample period in which one of its kernels ran."""
    memory_ratio: float | None = None
    """Part of that period in which the memory controller was busy."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    gpu_instance: int | None = None
    """GPU instance on a card in MIG mode; None: on no instance, or the driver does not report
    it."""
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class MigReading:
    """One MIG device of a GPU."""

    uuid: GpuUuid
    profile: str
    """Profile name such as 1g.10gb."""
    gpu_instance: int
    compute_instance: int
    memory_total_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    slice_start: int | None = None
    """First memory slice on the card, and the number of slices."""
    slices: int | None = None


SWITCH: Final = "switch"
"""Used in place of a PCI bus id."""


@dataclass(frozen=True, slots=True)
class ProfileReading:
    """NVML's GPU performance monitoring (GPM): averages between two sweeps. Hopper and later."""

    graphics_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """NVML's data of one GPU that every screen shows; a field that this card or driver does not
    report is None."""

    uuid: GpuUuid
    index: int
    name: str
    memory_total_bytes: Bytes
    memory_used_bytes: Bytes | None = None
    sm_count: int | None = None
    pci_bus_id: str | None = None
    numa_node: int | None = None
    """The NUMA node of CPUs and memory that the card is attached to."""
    utilization_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None

    def figures(self) -> dict[str, Any]:
        """The fields above by name."""
        return {one.name: getattr(self, one.name) for one in fields(GpuFigures)}


@dataclass(frozen=True, slots=True)
class GpuReading(GpuFigures):
    """All of NVML's data of one GPU; a field that this card or driver does not report is None."""

    processes: tuple[ProcessReading, ...] = ()
    graphics: tuple[ProcessReading, ...] = ()
    """Processes that NVML lists for graphics only (OpenGL, Vulkan, OptiX, video); every few
    seconds. Neither their memory nor their time is in any grant."""
    recovery_action: str | None = None
    """NVML's own verdict, if it gives one: none, reset, reboot, drain."""
    error: str | None = None
    """Set if this GPU could not be read: NVML's name for the reason."""
    memory_reserved_bytes: Bytes | None = None
    """The driver's own part, which is not in memory_total_bytes."""
    memory_utilization_ratio: float | None = None
    """Part of the time in which the memory was read or written."""
    encoder_ratio: float | None = None
    decoder_ratio: float | None = None
    memory_temperature_celsius: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    power_limit_watts: float | None = None
    energy_joules_total: float | None = None
    """Energy used since the driver was loaded."""
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons why the clocks are below what was requested, with NVML's names in lower case, sorted:
    hw_slowdown, hw_thermal_slowdown, hw_power_brake, sw_power_cap, sw_thermal_slowdown, sync_boost.
    Idleness and clocks set by people are excluded; empty: nothing slows it."""
    ecc_corrected_total: int | None = None
    """Corrected errors since the driver was loaded."""
    ecc_uncorrected_total: int | None = None
    """Uncorrected errors since the driver was loaded."""
    row_remap_correctable_total: int | None = None
    """Rows replaced permanently in the card's life."""
    row_remap_uncorrectable_total: int | None = None
    row_remap_pending: bool | None = None
    """True if a row waits to be replaced at the next reset."""
    row_remap_failed: bool | None = None
    """True if no spare row is left, so that the card has to be replaced."""
    pcie_replay_total: int | None = None
    nvlink_tx_bytes_total: int | None = None
    """Data over all links together."""
    nvlink_rx_bytes_total: int | None = None
    nvlinks_active: int | None = None
    nvlink_peers: Mapping[str, int] | None = None
    """Number of links by the PCI bus id at their other end; SWITCH is a switch that connects all
    cards of its node."""
    vgpu_licensed: bool | None = None
    mig: tuple[MigReading, ...] | None = None
    """Its MIG devices; None: the card has no MIG, or it is off."""
    mig_profile: str = ""
    """Set if this is an instance of a card; see core/gpus/mig.py."""
    mig_card: GpuUuid | None = None
    """Card of an instance, and its slices there."""
    mig_slice_start: int | None = None
    mig_slices: int | None = None
    profile: ProfileReading | None = None
    architecture: str | None = None
    """NVIDIA's name, such as Hopper."""
    brand: str | None = None
    compute_capability: str | None = None
    """Such as 9.0."""


@dataclass(frozen=True, slots=True)
class CardProblem:
    """A card of which NVML gives nothing, or not all that this node needs, with NVML's reason."""

    index: int
    name: str
    """Its model; empty if NVML does not give that either."""
    reason: str
    uuid: GpuUuid | None = None

    @property
    def card(self) -> str:
        return f"GPU {self.index}" + (f" ({self.name})" if self.name else "")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One pass over all GPUs, or the reason why it failed."""

    gpus: tuple[GpuReading, ...] = ()
    driver_version: str | None = None
    nvml_version: str | None = None
    xid_events: tuple[tuple[GpuUuid, int], ...] = ()
    error: str | None = None
    cuda_version: str | None = None
    """Newest CUDA version that the driver supports, such as 13.0."""
    unread: tuple[CardProblem, ...] = ()
    """Cards that NVML counts and does not describe: they are in `gpus` only once they are."""
    without_xids: tuple[CardProblem, ...] = ()
    """Cards of which no XID is reported."""


class Nvml(Protocol):
    """NVML, in a separate process that can be killed when the driver hangs."""

    restarts_total: int
    """Times that process missed its deadline or ended."""

    async def read(self) -> NodeReading:
        """Read all GPUs, at most for the deadline; a failure is a reading with `error` set."""

    async def refresh(self) -> None:
        """Discard state because GPUs were added or removed; the next reading starts afresh."""

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Stop that process, and all readings, while this is held; the next reading then starts
        afresh."""

    def together(self) -> AbstractAsyncContextManager[None]:
        """Shared access for another process of ours; excludes `exclusive()`."""

    async def close(self) -> None: ...
