"""The catalogue of metrics: name, kind, labels and help, declared once; docs/metrics.md is
checked against it.

Base units, the unit last, `_total` on counters; ratios are 0 to 1. A label value never comes
from a tenant's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Without `_total`: the exposition format adds it to counters."""
    kind: Kind
    labels: tuple[str, ...]
    help: str


_GPU: Final = ("gpu", "index")
_GRANT: Final = ("grant", "name", "gpu")


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, help_)


BUILD_INFO: Final = _gauge("sluice_build_info", ("version",), "Version of the daemon, always 1.")
LOOP_LAST_OK: Final = _gauge(
    "sluice_loop_last_ok_timestamp_seconds",
    ("loop",),
    "When this loop of the daemon last completed a round.",
)
GRANTS_WAITING: Final = _gauge(
    "sluice_grant_requests_waiting", (), "Requests that wait for a GPU share."
)
NVML_AGE: Final = _gauge(
    "sluice_nvml_reading_age_seconds", (), "Age of the last complete NVML reading."
)
NVML_RESTARTS: Final = _counter(
    "sluice_nvml_restarts", (), "Times the NVML reader missed its deadline or ended."
)
TAMPERS: Final = _counter(
    "sluice_tamper_events",
    (),
    "Impossible values found in memory that tenants write, all grants since the daemon started.",
)
REGISTRATIONS_DROPPED: Final = _counter(
    "sluice_registrations_dropped", (), "Registrations dropped unanswered by the rate limit."
)

GPU_INFO: Final = _gauge(
    "sluice_gpu_info", (*_GPU, "model", "pci_bus_id"), "What the GPU is, always 1."
)
GPU_HEALTHY: Final = _gauge("sluice_gpu_healthy", _GPU, "1 while the GPU is offered, else 0.")
GPU_MEMORY: Final = _gauge("sluice_gpu_memory_bytes", _GPU, "Memory of the GPU.")
GPU_MEMORY_USED: Final = _gauge(
    "sluice_gpu_memory_used_bytes", _GPU, "Memory in use on the GPU, by NVML."
)
GPU_MEMORY_GRANTED: Final = _gauge(
    "sluice_gpu_memory_granted_bytes", _GPU, "Memory promised to grants."
)
GPU_SM_GRANTED: Final = _gauge(
    "sluice_gpu_sm_granted_ratio", _GPU, "Sum of the shares of grants; above 1 with elastic ones."
)
GPU_UTILIZATION: Final = _gauge(
    "sluice_gpu_utilization_ratio", _GPU, "Part of the time in which any kernel ran, by NVML."
)
GPU_TEMPERATURE: Final = _gauge("sluice_gpu_temperature_celsius", _GPU, "GPU temperature.")
GPU_POWER: Final = _gauge("sluice_gpu_power_watts", _GPU, "Power drawn by the GPU.")
GPU_GRANTS: Final = _gauge("sluice_gpu_grants", _GPU, "Grants on the GPU.")
GPU_SLOTS: Final = _gauge("sluice_gpu_slots", _GPU, "Grants the GPU may carry.")

GRANT_INFO: Final = _gauge(
    "sluice_grant_info", ("grant", "name", "policy", "state", "uid"), "One live grant, always 1."
)
GRANT_PROCESSES: Final = _gauge(
    "sluice_grant_processes", ("grant", "name"), "Registered processes of the grant."
)
GRANT_TAMPERS: Final = _counter(
    "sluice_grant_tamper_events",
    ("grant", "name"),
    "Impossible values found in the memory this grant's processes write.",
)
GRANT_MEMORY_LIMIT: Final = _gauge(
    "sluice_grant_memory_limit_bytes", _GRANT, "Most GPU memory the grant may hold."
)
GRANT_MEMORY_USED: Final = _gauge(
    "sluice_grant_memory_used_bytes", _GRANT, "GPU memory charged to the grant."
)
GRANT_MEMORY_PEAK: Final = _gauge(
    "sluice_grant_memory_peak_bytes", _GRANT, "Most GPU memory the grant ever held."
)
GRANT_SM_LIMIT: Final = _gauge(
    "sluice_grant_sm_limit_ratio", _GRANT, "Share of the GPU's time: the cap, or the weight."
)
GRANT_SM_USED: Final = _gauge(
    "sluice_grant_sm_used_ratio", _GRANT, "Part of the last second the grant's kernels ran."
)
GRANT_BUSY: Final = _counter(
    "sluice_grant_busy_seconds", _GRANT, "GPU time used by the grant's kernels."
)
GRANT_THROTTLED: Final = _counter(
    "sluice_grant_throttled_seconds",
    _GRANT,
    "Time threads of the grant waited for their share, all threads together.",
)
GRANT_LAUNCHES: Final = _counter("sluice_grant_launches", _GRANT, "Kernel and graph launches.")
GRANT_ALLOCATIONS: Final = _counter("sluice_grant_allocations", _GRANT, "Memory allocations made.")
GRANT_DENIED: Final = _counter(
    "sluice_grant_allocations_denied", _GRANT, "Memory allocations refused by the limit."
)

CATALOGUE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
