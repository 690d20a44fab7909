"""The catalogue of metrics: name, kind, labels and help, declared once;
docs/reference/metrics-node.md is generated from it.

Base units, the unit last, `_total` on counters; ratios are 0 to 1. A label value never comes
from a tenant's memory.
"""

from __future__ import annotations

from typing import Final

from sluicecommon.metric import Kind, Metric

_GPU: Final = ("gpu", "index")
_GRANT: Final = ("grant", "name", "gpu")


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, help_)


def _histogram(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, help_)


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
CONFIG_VALID: Final = _gauge(
    "sluice_config_valid",
    (),
    "1 while the configuration's files can be taken over as they are, else 0: what ran goes on.",
)
TOOLKIT_ACCEPTS: Final = _gauge(
    "sluice_container_toolkit_accepts_envvar",
    (),
    "1 where the NVIDIA container runtime gives GPUs to any container that sets"
    " NVIDIA_VISIBLE_DEVICES, around every grant; only where the kubelet is served.",
)
PLUGIN_CONFLICT: Final = _gauge(
    "sluice_kubelet_plugin_conflict",
    (),
    "1 while another device plugin serves, or may serve, the same resource.",
)
CONFIG_WAITING: Final = _gauge(
    "sluice_config_keys_waiting", (), "Changed keys of the configuration that need a restart."
)
GRANT_WAIT: Final = _histogram(
    "sluice_grant_wait_seconds",
    (),
    "Time from a request for a GPU share to the grant; refused and withdrawn ones are not in it.",
)
BINDING_DURATION: Final = _histogram(
    "sluice_binding_duration_seconds",
    (),
    "Time to bind a grant: placed, written to the ledger, its region made.",
)
SERIES_DROPPED: Final = _counter(
    "sluice_metrics_series_dropped",
    ("reason",),
    "Series left out of scrapes: above metrics.max_series, or there already.",
)
DETECTIONS: Final = _counter(
    "sluice_detections",
    ("rule",),
    "Suspicions of use around the interposer, since the daemon started (docs/node/telemetry.md).",
)
SUSPICIONS: Final = _gauge("sluice_suspicions_active", ("rule",), "Suspicions that stand now.")
ACTS: Final = _counter(
    "sluice_containment_acts",
    ("step",),
    "Steps taken because of a suspicion, each with an audit row before it.",
)
CONTAINED: Final = _gauge(
    "sluice_contained",
    ("step",),
    "Steps in force now: throttled grants, refused and frozen containers (`sluice contained`).",
)

SPILLED_BYTES: Final = _gauge(
    "sluice_spilled_memory_bytes",
    (),
    "GPU memory of grants that is in the host's memory, or on its way there or back"
    " (docs/node/checkpoint.md).",
)
SPILLS: Final = _counter(
    "sluice_spills",
    ("result",),
    "Times a grant's memory was to go to the host or come back, by what became of it: spilled,"
    " returned; failed, it stayed on its GPUs; stayed, on the host; lost; found, brought back by"
    " others.",
)

KUBELET_REGISTERED: Final = _gauge(
    "sluice_kubelet_registered", (), "1 while the kubelet knows the device plugin, else 0."
)
KUBELET_REGISTRATIONS: Final = _counter(
    "sluice_kubelet_registrations", (), "Times the device plugin registered with the kubelet."
)
KUBELET_READABLE: Final = _gauge(
    "sluice_kubelet_records_readable",
    (),
    "1 while the kubelet's checkpoint and PodResources can be read; else nothing is released.",
)
KUBELET_ALLOCATIONS: Final = _counter(
    "sluice_kubelet_allocations", (), "Containers that were given device ids."
)
KUBELET_STARTS: Final = _counter(
    "sluice_kubelet_container_starts", (), "Starts of containers that were let into a grant."
)
KUBELET_REFUSED: Final = _counter(
    "sluice_kubelet_container_starts_refused",
    (),
    "Starts refused; the kubelet tries again, and shows the reason in the pod's events.",
)
KUBELET_RELEASES: Final = _counter(
    "sluice_kubelet_releases", (), "Allocations released because their pod was gone."
)
KUBELET_MISMATCHES: Final = _counter(
    "sluice_kubelet_hint_mismatches",
    (),
    "Grants on another GPU than the kubelet counts the container on.",
)

KUBELET_UNREAD: Final = _counter(
    "sluice_kubelet_container_starts_unread",
    (),
    "Containers let in by the node's defaults because nobody could say what they ask for.",
)
KUBERNETES_IN_SYNC: Final = _gauge(
    "sluice_kubernetes_in_sync",
    (),
    "1 while this node's pods are known from the API server; only where there is access to one.",
)
KUBERNETES_COUNTED: Final = _gauge(
    "sluice_kubernetes_counted",
    (),
    "1 while memory and cores of this node's GPUs are counted in its Node object.",
)
DRA_REGISTERED: Final = _gauge(
    "sluice_dra_registered", (), "1 while the kubelet has taken the DRA driver."
)
DRA_PUBLISHED: Final = _gauge(
    "sluice_dra_published",
    (),
    "1 while this node's ResourceSlices are as they should be; also when they should be gone.",
)
DRA_SLICE_WRITES: Final = _counter(
    "sluice_dra_slice_writes", (), "ResourceSlices written or deleted."
)
DRA_CLAIMS: Final = _gauge("sluice_dra_claims", (), "Claims that are prepared, or being prepared.")
DRA_PREPARED: Final = _counter(
    "sluice_dra_claims_prepared", (), "Answers to the kubelet that prepared a claim."
)
DRA_REFUSED: Final = _counter(
    "sluice_dra_claims_refused", (), "Answers to the kubelet that did not; it asks again."
)
DRA_RELEASED: Final = _counter("sluice_dra_claims_released", (), "Claims given back.")
DRA_READABLE: Final = _gauge(
    "sluice_dra_claims_readable", (), "1 while claims can be read from the API server."
)

QUEUE_CONNECTED: Final = _gauge(
    "sluice_queue_link_connected", (), "1 while there is a session with the queue controller."
)
QUEUE_SESSION_AGE: Final = _gauge(
    "sluice_queue_link_session_age_seconds", (), "Age of that session."
)
QUEUE_SILENT: Final = _gauge(
    "sluice_queue_link_silent_seconds", (), "Time since the controller last said anything valid."
)
QUEUE_LEASE: Final = _gauge(
    "sluice_queue_link_lease_seconds",
    (),
    "What is left of the lease; at 0 nothing new is started, and what runs goes on.",
)
QUEUE_TERM: Final = _gauge(
    "sluice_queue_link_term", (), "Highest fencing term of a controller that was obeyed."
)
QUEUE_REVISION: Final = _gauge("sluice_queue_link_revision", (), "Highest revision obeyed.")
QUEUE_SESSIONS: Final = _counter(
    "sluice_queue_link_sessions", (), "Sessions that were made with the controller."
)
QUEUE_FENCED: Final = _counter(
    "sluice_queue_link_fenced_messages",
    (),
    "Messages of an earlier term or an older database than was obeyed before: not obeyed.",
)
QUEUE_DECISIONS: Final = _gauge(
    "sluice_queue_link_decisions",
    ("state",),
    "Decisions that the node holds; stopped, finished and refused ones are over and not told yet.",
)
QUEUE_WAITING: Final = _gauge(
    "sluice_queue_link_waiting_processes", (), "Processes of `sluice run --queue` in line."
)

HOST_MEMORY: Final = _gauge("sluice_host_memory_bytes", (), "Memory of the host.")
HOST_MEMORY_AVAILABLE: Final = _gauge(
    "sluice_host_memory_available_bytes", (), "Memory of the host that programs can still have."
)
HOST_CPUS: Final = _gauge("sluice_host_cpus", (), "Processors of the host.")
HOST_LOAD: Final = _gauge(
    "sluice_host_load_average", (), "Tasks that ran or wanted to, over one minute."
)
OWN_MEMORY: Final = _gauge(
    "sluice_process_resident_memory_bytes", ("process",), "Memory of the daemon and its children."
)
OWN_CPU: Final = _counter(
    "sluice_process_cpu_seconds", ("process",), "Processor time of the daemon and its children."
)

GPU_INFO: Final = _gauge(
    "sluice_gpu_info", (*_GPU, "model", "pci_bus_id"), "What the GPU is, always 1."
)
GPU_HEALTHY: Final = _gauge("sluice_gpu_healthy", _GPU, "1 while the GPU is offered, else 0.")
GPU_HEALTH_STATE: Final = _gauge(
    "sluice_gpu_health_state",
    (*_GPU, "state"),
    "1 for the state the GPU is in, 0 for the others: healthy, suspect, degraded, unhealthy,"
    " recovering, lost.",
)
GPU_HEALTH_CHANGES: Final = _counter(
    "sluice_gpu_health_changes", _GPU, "Times the GPU's state of health changed."
)
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
GPU_MEMORY_RESERVED: Final = _gauge(
    "sluice_gpu_memory_reserved_bytes", _GPU, "Memory the driver keeps for itself."
)
GPU_MEMORY_UTILIZATION: Final = _gauge(
    "sluice_gpu_memory_utilization_ratio",
    _GPU,
    "Part of the time in which the memory was read or written, by NVML.",
)
GPU_CODEC: Final = _gauge(
    "sluice_gpu_codec_utilization_ratio", (*_GPU, "codec"), "Load of the video encoder or decoder."
)
GPU_MEMORY_TEMPERATURE: Final = _gauge(
    "sluice_gpu_memory_temperature_celsius", _GPU, "Temperature of the memory."
)
GPU_CLOCK: Final = _gauge("sluice_gpu_clock_hertz", (*_GPU, "clock"), "Clock of SMs and memory.")
GPU_POWER_LIMIT: Final = _gauge("sluice_gpu_power_limit_watts", _GPU, "Power limit in force.")
GPU_ENERGY: Final = _counter(
    "sluice_gpu_energy_joules", _GPU, "Energy used since the driver was loaded."
)
GPU_THROTTLED: Final = _gauge(
    "sluice_gpu_throttled",
    (*_GPU, "reason"),
    "1 while this slows the clocks; no series while nothing does.",
)
GPU_ECC_ERRORS: Final = _counter(
    "sluice_gpu_ecc_errors", (*_GPU, "kind"), "Memory errors since the driver was loaded."
)
GPU_ROW_REMAPS: Final = _counter(
    "sluice_gpu_row_remaps", (*_GPU, "kind"), "Memory rows replaced in the life of the card."
)
GPU_ROW_REMAP_PENDING: Final = _gauge(
    "sluice_gpu_row_remap_pending", _GPU, "1 while a row is to be replaced at the next reset."
)
GPU_ROW_REMAP_FAILED: Final = _gauge(
    "sluice_gpu_row_remap_failed", _GPU, "1 when no spare row was left: replace the card."
)
GPU_PCIE_REPLAYS: Final = _counter(
    "sluice_gpu_pcie_replays", _GPU, "Packets that had to be sent again over PCIe."
)
GPU_NVLINK_BYTES: Final = _counter(
    "sluice_gpu_nvlink_bytes", (*_GPU, "direction"), "Data over all NVLinks together."
)
GPU_NVLINKS: Final = _gauge("sluice_gpu_nvlinks_active", _GPU, "NVLinks that are up.")
GPU_XIDS: Final = _counter(
    "sluice_gpu_xid_errors",
    (*_GPU, "xid"),
    "XID errors since the daemon started, by NVIDIA's number.",
)
GPU_ACTIVE: Final = _gauge(
    "sluice_gpu_active_ratio",
    (*_GPU, "unit"),
    "Part of the time, or of the unit, in use between two readings, by GPM (Hopper and later).",
)
GPU_PCIE_RATE: Final = _gauge(
    "sluice_gpu_pcie_bytes_per_second",
    (*_GPU, "direction"),
    "Data over PCIe between two readings, by GPM (Hopper and later).",
)
GPU_PROCESSES: Final = _gauge(
    "sluice_gpu_processes", _GPU, "Processes with a context on the GPU, in a grant or not."
)
GPU_MIG_INFO: Final = _gauge(
    "sluice_gpu_mig_info",
    (*_GPU, "mig", "profile", "gpu_instance", "compute_instance"),
    "One MIG device of the GPU, always 1.",
)
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

EBPF_UP: Final = _gauge("sluice_ebpf_up", (), "1 while the programs in the kernel watch, else 0.")
EBPF_RESTARTS: Final = _counter("sluice_ebpf_restarts", (), "Times the eBPF child ended.")
EBPF_LOST: Final = _counter(
    "sluice_ebpf_records_lost", (), "Records and rows the kernel or the child had no room for."
)
EBPF_EVENTS: Final = _counter(
    "sluice_ebpf_events",
    ("kind",),
    "What the kernel told: opens of GPU devices, refused ones, execs, exits, foreign libraries,"
    " altered probes.",
)
EBPF_PROBE: Final = _gauge(
    "sluice_ebpf_probe_seconds",
    ("probe",),
    "What a probe costs a launch on this machine while it is attached.",
)
AUDIT_WINDOWS: Final = _counter(
    "sluice_audit_windows", (), "Looks at the driver's launch entry points."
)
AUDIT_LAUNCHES: Final = _counter(
    "sluice_audit_launches",
    ("seen_by",),
    "Launches in those windows, by whom they passed: the driver, and our interposer before it.",
)

CATALOGUE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
