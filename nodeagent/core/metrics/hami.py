"""The metric names of HAMi's monitor and of its scheduler's node figures, for existing dashboards,
with HAMi's labels and units: a "ratio" is 0 to 100 where HAMi's is.

Three things differ on purpose: every series of the host has the `node` label, `device_type` is the
same everywhere, and a container that ended has no series. A grant without a container is shown with
its name for the pod, in namespace `sluice`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from nodeagent.core.gpus.mig import unit_of
from nodeagent.ports.gpus import ProcessReading
from nodeagent.ports.views import DeviceView, GrantView, NodeView
from sluicecommon.metric import Kind, Metric
from sluicecommon.prometheus import Exposition

_HOST: Final = ("node", "device_index", "device_uuid", "device_type")
_VGPU: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_ALLOCATED: Final = ("namespace", "node", "pod", "container_index", "device_uuid")
_MIG: Final = (
    *("node", "device_index", "device_uuid", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id"),
)
_OVERVIEW: Final = (*_HOST, "device_cores", "device_memory_limit")
_INSTANCE: Final = (*_MIG, "placement_start", "placement_size")
OUTSIDE_NAMESPACE: Final = "sluice"


@dataclass(frozen=True, slots=True)
class _Family:
    metric: Metric
    legacy: Metric | None


def _gauge(name: str, legacy: str, labels: tuple[str, ...], help_: str) -> _Family:
    return _Family(
        Metric(name, Kind.GAUGE, labels, help_, exact=True),
        Metric(legacy, Kind.GAUGE, labels, help_, exact=True) if legacy else None,
    )


HOST_MEMORY: Final = _gauge(
    "hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage", _HOST, "Memory in use on the GPU."
)
HOST_CORES: Final = _gauge(
    "hami_host_gpu_utilization_ratio", "HostCoreUtilization", _HOST, "GPU utilization, 0 to 100."
)
HOST_CONTROLLER: Final = _gauge(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "",
    _HOST,
    "Memory controller utilization, 0 to 100.",
)
VGPU_USED: Final = _gauge(
    "hami_vgpu_memory_used_bytes",
    "vGPU_device_memory_usage_in_bytes",
    _VGPU,
    "Memory charged to the container.",
)
VGPU_LIMIT: Final = _gauge(
    "hami_vgpu_memory_limit_bytes",
    "vGPU_device_memory_limit_in_bytes",
    _VGPU,
    "Most memory the container may hold.",
)
CONTAINER_MEMORY: Final = _gauge(
    "hami_container_device_memory_bytes",
    "Device_memory_desc_of_container",
    _VGPU,
    "Memory charged to the container.",
)
CONTAINER_CORES: Final = _gauge(
    "hami_container_device_utilization_ratio",
    "Device_utilization_desc_of_container",
    _VGPU,
    "SM utilization of the container's processes together, 0 to 100 and above.",
)
MIG_INFO: Final = _gauge("hami_mig_device_info", "MigInfo", _MIG, "One MIG device, always 1.")
GPU_MEMORY_LIMIT: Final = _gauge(
    "hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit", _HOST, "Memory that may be granted."
)
GPU_CORE_LIMIT: Final = _gauge(
    "hami_gpu_core_limit_ratio", "GPUDeviceCoreLimit", _HOST, "Compute that may be granted, 100."
)
GPU_MEMORY_ALLOCATED: Final = _gauge(
    "hami_gpu_memory_allocated_bytes", "GPUDeviceMemoryAllocated", _HOST, "Memory granted."
)
GPU_CORE_ALLOCATED: Final = _gauge(
    "hami_gpu_core_allocated_ratio", "GPUDeviceCoreAllocated", _HOST, "Compute granted, 0 to 100."
)
GPU_SHARED: Final = _gauge(
    "hami_gpu_shared_count", "GPUDeviceSharedNum", _HOST, "Containers that share the GPU."
)
VGPU_MEMORY_ALLOCATED: Final = _gauge(
    "hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated", _ALLOCATED, "Memory granted."
)
VGPU_CORE_ALLOCATED: Final = _gauge(
    "hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated", _ALLOCATED, "Compute granted, 0 to 100."
)
NODE_OVERVIEW: Final = _gauge(
    "hami_node_gpu_overview",
    "nodeGPUOverview",
    _OVERVIEW,
    "Memory granted (bytes), beside the card's compute (100) and its memory (MiB).",
)
NODE_MEMORY_RATIO: Final = _gauge(
    "hami_node_gpu_memory_allocated_ratio",
    "nodeGPUMemoryPercentage",
    ("node", "device_index", "device_uuid"),
    "Memory granted of what may be, 0 to 1.",
)
NODE_MIG: Final = _gauge(
    "hami_node_gpu_mig_instance_info",
    "nodeGPUMigInstance",
    _INSTANCE,
    "One MIG device with its place in memory slices, always 1.",
)
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, _Family))


class Filler:
    def __init__(self, samples: Exposition, node: str, legacy: bool) -> None:
        self._samples = samples
        self._node = node
        self._legacy = legacy

    def fill(self, view: NodeView) -> None:
        for gpu in view.gpus:
            labels = (self._node, str(gpu.index), gpu.uuid, gpu.name)
            self._add(GPU_MEMORY_LIMIT, labels, gpu.memory_total_bytes)
            self._add(GPU_CORE_LIMIT, labels, 100)
            self._add(GPU_MEMORY_ALLOCATED, labels, gpu.memory_granted_bytes)
            self._add(GPU_CORE_ALLOCATED, labels, _percent(gpu.share_granted_ratio))
            self._add(GPU_SHARED, labels, gpu.grants)
            granted, total = gpu.memory_granted_bytes, gpu.memory_total_bytes
            self._add(NODE_OVERVIEW, (*labels, "100", str(total >> 20)), granted)
            if total:
                self._add(NODE_MEMORY_RATIO, labels[:3], round(granted / total, 4))
        by_pid: dict[tuple[str, int], ProcessReading] = {}
        for reading in view.readings:
            labels = (self._node, str(reading.index), reading.uuid, reading.name)
            self._add(HOST_MEMORY, labels, reading.memory_used_bytes)
            self._add(HOST_CORES, labels, _percent(reading.utilization_ratio))
            self._add(HOST_CONTROLLER, labels, _percent(reading.memory_utilization_ratio))
            by_pid |= {(unit_of(reading, one), one.pid): one for one in reading.processes}
            for mig in reading.mig or ():
                instances = (str(mig.gpu_instance), str(mig.compute_instance))
                where = (self._node, str(reading.index), reading.uuid)
                known = (*where, mig.uuid, mig.profile, *instances)
                self._add(MIG_INFO, known, 1)
                if mig.slice_start is not None and mig.slices is not None:
                    self._add(NODE_MIG, (*known, str(mig.slice_start), str(mig.slices)), 1)
        seen: Counter[str] = Counter()
        for grant in view.grants:
            self._grant(grant, by_pid, seen)

    def _grant(
        self, grant: GrantView, by_pid: dict[tuple[str, int], ProcessReading], seen: Counter[str]
    ) -> None:
        holder = grant.container
        if holder is not None:
            names = (holder.namespace, holder.pod, holder.container)
            container_index = str(seen[holder.pod_uid])
            seen[holder.pod_uid] += 1
        # The id distinguishes grants with the same name, because a series must not appear twice.
        else:
            name = f"{grant.name}-{grant.grant[:8]}" if grant.name else str(grant.grant)
            names, container_index = (OUTSIDE_NAMESPACE, name, ""), "0"
        for index, device in enumerate(grant.devices):
            labels = (*names, str(index), device.gpu)
            self._add(VGPU_USED, labels, device.memory_used_bytes)
            self._add(VGPU_LIMIT, labels, device.memory_limit_bytes)
            self._add(CONTAINER_MEMORY, labels, device.memory_used_bytes)
            self._add(CONTAINER_CORES, labels, _busy(grant, device, by_pid))
            allocated = (names[0], self._node, names[1], container_index, device.gpu)
            self._add(VGPU_MEMORY_ALLOCATED, allocated, device.memory_limit_bytes)
            self._add(VGPU_CORE_ALLOCATED, allocated, _percent(device.share_ratio))

    def _add(self, family: _Family, labels: tuple[str, ...], value: float | None) -> None:
        self._samples.add(family.metric, labels, value)
        if self._legacy and family.legacy is not None:
            self._samples.add(family.legacy, labels, value)


def _busy(
    grant: GrantView, device: DeviceView, by_pid: dict[tuple[str, int], ProcessReading]
) -> float | None:
    """NVML's samples of its registered processes; our own figure if NVML has none."""
    samples = [
        one.sm_ratio
        for pid in grant.pids
        if (one := by_pid.get((device.gpu, pid))) is not None and one.sm_ratio is not None
    ]
    return _percent(sum(samples) if samples else device.used_ratio)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value * 100, 1)
