"""dcgm-exporter's default counters under its own names, units and labels, for existing dashboards
and alerts.

Values that NVML does not report have no series. A GPU has each series once, even if pods share it:
one per pod would make sums over the node too high. The pod is in the labels while exactly one has
the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nodeagent.ports.gpus import GpuReading, MigReading
from nodeagent.ports.ledger import ContainerRef
from nodeagent.ports.views import NodeView
from nodeagent.units import MIB, GpuUuid
from sluicecommon.metric import Kind, Metric
from sluicecommon.prometheus import Exposition

Read = Callable[[GpuReading], float | None]


def _gauge(name: str, help_: str, read: Read) -> tuple[str, Kind, str, Read]:
    return name, Kind.GAUGE, help_, read


def _counter(name: str, help_: str, read: Read) -> tuple[str, Kind, str, Read]:
    return name, Kind.COUNTER, help_, read


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value * 100)


def _mhz(value: int | None) -> float | None:
    return None if value is None else value // 1_000_000


def _mib(value: int | None) -> float | None:
    return None if value is None else value // MIB


def _free(gpu: GpuReading) -> float | None:
    used = gpu.memory_used_bytes
    return None if used is None else (gpu.memory_total_bytes - used) // MIB


def _nvlink(gpu: GpuReading) -> float | None:
    tx, rx = gpu.nvlink_tx_bytes_total, gpu.nvlink_rx_bytes_total
    return None if tx is None or rx is None else (tx + rx) // MIB


def _profile(field: str) -> Read:
    return lambda gpu: None if gpu.profile is None else getattr(gpu.profile, field)


FAMILIES: Final = (
    _gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", lambda g: _mhz(g.sm_clock_hz)),
    _gauge(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        lambda g: _mhz(g.memory_clock_hz),
    ),
    _gauge(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Memory temperature (in C).",
        lambda g: g.memory_temperature_celsius,
    ),
    _gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", lambda g: g.temperature_celsius),
    _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", lambda g: g.power_watts),
    _counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ).",
        lambda g: _times(g.energy_joules_total, 1000),
    ),
    _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe retries.", lambda g: g.pcie_replay_total),
    _gauge(
        "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", lambda g: _percent(g.utilization_ratio)
    ),
    _gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Memory utilization (in %).",
        lambda g: _percent(g.memory_utilization_ratio),
    ),
    _gauge(
        "DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", lambda g: _percent(g.encoder_ratio)
    ),
    _gauge(
        "DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", lambda g: _percent(g.decoder_ratio)
    ),
    _gauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", _free),
    _gauge(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        lambda g: _mib(g.memory_used_bytes),
    ),
    _gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        lambda g: _mib(g.memory_reserved_bytes),
    ),
    _counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for uncorrectable errors.",
        lambda g: g.row_remap_uncorrectable_total,
    ),
    _counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped for correctable errors.",
        lambda g: g.row_remap_correctable_total,
    ),
    _gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed.",
        lambda g: g.row_remap_failed,
    ),
    _counter(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks together (in MiB).", _nvlink
    ),
    _gauge(
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS", "Whether a vGPU is licensed.", lambda g: g.vgpu_licensed
    ),
    _gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Ratio of time the graphics engine is active.",
        _profile("graphics_active_ratio"),
    ),
    _gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor pipe is active.",
        _profile("tensor_active_ratio"),
    ),
    _gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the memory interface is active.",
        _profile("dram_active_ratio"),
    ),
    _gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "Data sent over PCIe (in B/s).",
        _profile("pcie_tx_bytes_per_s"),
    ),
    _gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "Data received over PCIe (in B/s).",
        _profile("pcie_rx_bytes_per_s"),
    ),
)
"""Name, kind, help and reader of each family. DCGM_FI_DEV_XID_ERRORS is added below, because the
last XID is not in a reading."""
XID_ERRORS: Final = "DCGM_FI_DEV_XID_ERRORS"
XID_HELP: Final = "Value of the last XID error."
PER_INSTANCE: Final = frozenset({"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"})
"""Metrics that have, with MIG on, a series for each instance and none for the GPU."""
NAMES: Final = (*(family[0] for family in FAMILIES), XID_ERRORS)


@dataclass(frozen=True, slots=True)
class Names:
    """The node's name in labels."""

    node: str
    hostname_labels: tuple[str, ...] = ("Hostname",)


def fill(samples: Exposition, view: NodeView, names: Names) -> None:
    holders = _holders(view)
    for name, kind, help_, read in FAMILIES:
        for gpu in view.readings:
            if name in PER_INSTANCE and gpu.mig is not None:
                for mig in gpu.mig:
                    labels = _labels(view, gpu, names, holders, mig)
                    _add(samples, name, kind, help_, labels, _of_instance(name, mig))
            else:
                _add(samples, name, kind, help_, _labels(view, gpu, names, holders), read(gpu))
    for gpu in view.readings:
        labels = _labels(view, gpu, names, holders)
        last = view.last_xid.get(gpu.uuid, 0)
        _add(samples, XID_ERRORS, Kind.GAUGE, XID_HELP, labels, last)


def _of_instance(name: str, mig: MigReading) -> float | None:
    total, used = mig.memory_total_bytes, mig.memory_used_bytes
    if name == "DCGM_FI_DEV_FB_USED":
        return _mib(used)
    return None if total is None or used is None else (total - used) // MIB


def _add(
    samples: Exposition,
    name: str,
    kind: Kind,
    help_: str,
    labels: dict[str, str],
    value: float | None,
) -> None:
    metric = Metric(name, kind, tuple(labels), help_, exact=True)
    samples.add(metric, tuple(labels.values()), None if value is None else _plain(value))


def _plain(value: float) -> float:
    return int(value) if isinstance(value, bool) else value


def _holders(view: NodeView) -> dict[GpuUuid, ContainerRef]:
    """The container of each GPU that has exactly one grant."""
    grants: dict[GpuUuid, list[ContainerRef | None]] = {}
    for grant in view.grants:
        for device in grant.devices:
            grants.setdefault(device.gpu, []).append(grant.container)
    return {gpu: found[0] for gpu, found in grants.items() if len(found) == 1 and found[0]}


def _labels(
    view: NodeView,
    gpu: GpuReading,
    names: Names,
    holders: dict[GpuUuid, ContainerRef],
    mig: MigReading | None = None,
) -> dict[str, str]:
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id or "",
        "device": f"nvidia{gpu.index}",
        "modelName": gpu.name,
    }
    if mig is not None:
        labels |= {"GPU_I_PROFILE": mig.profile, "GPU_I_ID": str(mig.gpu_instance)}
    labels |= dict.fromkeys(names.hostname_labels, names.node)
    labels["DCGM_FI_DRIVER_VERSION"] = view.driver_version or ""
    holder = holders.get(gpu.uuid if mig is None else mig.uuid)
    if holder is not None:
        labels |= {
            "container": holder.container,
            "namespace": holder.namespace,
            "pod": holder.pod,
        }
    return labels
