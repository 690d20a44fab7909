"""The metrics of HAMi's monitor and of its scheduler: names, labels and units, for its dashboards.
A "ratio" goes from 0 to 100 where HAMi's does.

The node serves those of NVIDIA's cards, also with the names before HAMi 2.9; the queue serves
quotas of namespaces and the devices of other vendors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluicecommon.metric import Kind, Metric

# -- of the node ----------------------------------------------------------------------------------

_HOST: Final = ("node", "device_index", "device_uuid", "device_type")
_VGPU: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_ALLOCATED: Final = ("namespace", "node", "pod", "container_index", "device_uuid")
_MIG: Final = (
    *("node", "device_index", "device_uuid", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id"),
)
_OVERVIEW: Final = (*_HOST, "device_cores", "device_memory_limit")
_INSTANCE: Final = (*_MIG, "placement_start", "placement_size")


@dataclass(frozen=True, slots=True)
class Family:
    metric: Metric
    legacy: Metric | None
    """The name before HAMi 2.9."""


def _gauge(name: str, legacy: str, labels: tuple[str, ...], help_: str) -> Family:
    return Family(
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
NODE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))

# -- of the scheduler -----------------------------------------------------------------------------

_DEVICE: Final = ("node", "device_uuid", "device_index", "device_type")
BUILD_INFO: Final = Metric(
    "hami_build_info", Kind.GAUGE, ("version",), "Version of the controller, always 1."
)
QUOTA_USED: Final = Metric(
    "hami_resource_quota_used",
    Kind.GAUGE,
    ("namespace", "quota_name", "limit"),
    "Amount of a resource that the pods of a namespace use, summed over devices.",
)
QUOTA_LIMIT: Final = Metric(
    "hami_resource_quota_limit",
    Kind.GAUGE,
    ("namespace", "quota_name"),
    "Limit of that resource in the namespace's ResourceQuotas.",
)
DEVICE_MEMORY: Final = Metric(
    "hami_gpu_memory_limit_bytes", Kind.GAUGE, _DEVICE, "Memory of another vendor's device."
)
DEVICE_MEMORY_GIVEN: Final = Metric(
    "hami_gpu_memory_allocated_bytes",
    Kind.GAUGE,
    _DEVICE,
    "Memory of the device that is allocated to pods.",
)
DEVICE_CORES: Final = Metric(
    "hami_gpu_core_limit_ratio", Kind.GAUGE, _DEVICE, "Cores of the device, in the vendor's unit."
)
DEVICE_CORES_GIVEN: Final = Metric(
    "hami_gpu_core_allocated_ratio",
    Kind.GAUGE,
    _DEVICE,
    "Cores of the device that are allocated to pods.",
)
DEVICE_OVERVIEW: Final = Metric(
    "hami_node_gpu_overview",
    Kind.GAUGE,
    (*_DEVICE, "device_cores", "device_memory_limit"),
    "Allocated memory (bytes); the labels have the device's cores and memory (MiB).",
)
DEVICE_MEMORY_RATIO: Final = Metric(
    "hami_node_gpu_memory_allocated_ratio",
    Kind.GAUGE,
    ("node", "device_uuid", "device_index"),
    "Allocated part of the device's memory, 0 to 1.",
)
DEVICE_SHARED: Final = Metric(
    "hami_gpu_shared_count", Kind.GAUGE, _DEVICE, "Pods that share the device."
)

SCHEDULER: Final = (
    BUILD_INFO,
    QUOTA_USED,
    QUOTA_LIMIT,
    DEVICE_MEMORY,
    DEVICE_MEMORY_GIVEN,
    DEVICE_CORES,
    DEVICE_CORES_GIVEN,
    DEVICE_SHARED,
    DEVICE_OVERVIEW,
    DEVICE_MEMORY_RATIO,
)
