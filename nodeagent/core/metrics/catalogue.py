"""The catalogue of metrics: name, kind, labels, help and what reads the figure, declared once;
docs/reference/metrics-node.md is generated from it.

A metric of a GPU, a grant or the node is declared by its source, with a function that reads it from
the view. One that is counted where it happens has no function: its owner reports it in
`NodeView.counters`, or as a histogram.

Base units, the unit last, `_total` on counters; ratios are 0 to 1. A label value never comes
from a tenant's memory.

Longer than 500 lines because it is one list, searched by name.
"""

from __future__ import annotations

from typing import Final

from nodeagent.core.gpus.health import OFFERED, Health
from nodeagent.ports.gpus import GpuReading
from nodeagent.ports.views import DeviceView, GpuView, GrantView, HostFigures, NodeView, QueueView
from sluicecommon.metric import Kind, Metric, Source

NODE: Final = Source[NodeView]()
QUEUE: Final = Source[QueueView]()
HOST: Final = Source[HostFigures]()
UNIT: Final = Source[GpuView]("gpu", "index")
"""GPUs and MIG instances that grants are placed on."""
CARD: Final = Source[GpuReading]("gpu", "index")
GRANT: Final = Source[GrantView]("grant", "name")
DEVICE: Final = Source[DeviceView]("grant", "name", "gpu")
"""One GPU of a grant."""


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, help_)


def _histogram(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, help_)


def _flag(value: bool | None) -> int | None:
    return None if value is None else int(value)


BUILD_INFO: Final = NODE.gauge(
    "sluice_build_info",
    "Version of the daemon, always 1.",
    lambda view: {view.version: 1},
    "version",
)
LOOP_LAST_OK: Final = NODE.gauge(
    "sluice_loop_last_ok_timestamp_seconds",
    "When this loop of the daemon last completed a round.",
    lambda view: {loop.name: loop.last_ok_unix_s for loop in view.loops},
    "loop",
)
GRANTS_WAITING: Final = NODE.gauge(
    "sluice_grant_requests_waiting",
    "Requests that wait for a GPU share.",
    lambda view: view.waiting,
)
NVML_AGE: Final = NODE.gauge(
    "sluice_nvml_reading_age_seconds",
    "Age of the last complete NVML reading.",
    lambda view: view.reading_age_s,
)
NVML_RESTARTS: Final = NODE.counter(
    "sluice_nvml_restarts",
    "Times the NVML reader missed its deadline or ended.",
    lambda view: view.nvml_restarts_total,
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
    "1 if the configuration on disk is valid; 0 while an earlier valid one is in use.",
)
TOOLKIT_ACCEPTS: Final = _gauge(
    "sluice_container_toolkit_accepts_envvar",
    (),
    "1 if the NVIDIA container runtime gives GPUs to any container that sets"
    " NVIDIA_VISIBLE_DEVICES, bypassing every grant; only if the kubelet is served.",
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
    "Time from a request for a GPU share to the grant; refused and withdrawn ones are excluded.",
)
BINDING_DURATION: Final = _histogram(
    "sluice_binding_duration_seconds",
    (),
    "Time to bind a grant: placement, ledger and region.",
)
SERIES_DROPPED: Final = _counter(
    "sluice_metrics_series_dropped",
    ("reason",),
    "Series dropped from scrapes: above metrics.max_series, or duplicate.",
)
DETECTIONS: Final = NODE.counter(
    "sluice_detections",
    "Suspected use that bypasses the interposer, since the daemon started"
    " (docs/node/telemetry.md).",
    lambda view: view.detections,
    "rule",
)
SUSPICIONS: Final = NODE.gauge(
    "sluice_suspicions_active",
    "Suspicions that are active now.",
    lambda view: view.suspicions,
    "rule",
)
ACTS: Final = NODE.counter(
    "sluice_containment_acts",
    "Steps taken because of a suspicion, each with an audit row before it.",
    lambda view: view.acts,
    "step",
)
CONTAINED: Final = NODE.gauge(
    "sluice_contained",
    "Steps in force now: throttled grants, refused and frozen containers (`sluice contained`).",
    lambda view: view.held,
    "step",
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
    "Checkpoints and restores of grants, by result: spilled, returned, failed (it stayed on its"
    " GPUs), stayed (on the host), lost, found (another program restored it).",
)

KUBELET_REGISTERED: Final = _gauge(
    "sluice_kubelet_registered",
    (),
    "1 while the device plugin is registered with the kubelet, else 0.",
)
KUBELET_REGISTRATIONS: Final = _counter(
    "sluice_kubelet_registrations", (), "Times the device plugin registered with the kubelet."
)
KUBELET_READABLE: Final = _gauge(
    "sluice_kubelet_records_readable",
    (),
    "1 while the kubelet's checkpoint and PodResources can be read; nothing is released otherwise.",
)
KUBELET_ALLOCATIONS: Final = _counter(
    "sluice_kubelet_allocations", (), "Containers that were given device ids."
)
KUBELET_STARTS: Final = _counter(
    "sluice_kubelet_container_starts", (), "Container starts that were admitted to a grant."
)
KUBELET_REFUSED: Final = _counter(
    "sluice_kubelet_container_starts_refused",
    (),
    "Container starts refused; the kubelet retries, and shows the reason in the pod's events.",
)
KUBELET_RELEASES: Final = _counter(
    "sluice_kubelet_releases", (), "Allocations released because their pod was gone."
)
KUBELET_MISMATCHES: Final = _counter(
    "sluice_kubelet_hint_mismatches",
    (),
    "Grants on another GPU than the one on which the kubelet counts the container.",
)

KUBELET_UNREAD: Final = _counter(
    "sluice_kubelet_container_starts_unread",
    (),
    "Containers admitted with the node's defaults because their requests could not be read.",
)
KUBERNETES_IN_SYNC: Final = _gauge(
    "sluice_kubernetes_in_sync",
    (),
    "1 while the watch of this node's pods is in sync; only with access to an API server.",
)
KUBERNETES_COUNTED: Final = _gauge(
    "sluice_kubernetes_counted",
    (),
    "1 while memory and cores of this node's GPUs are advertised in its Node object.",
)
DRA_REGISTERED: Final = _gauge(
    "sluice_dra_registered", (), "1 while the DRA driver is registered with the kubelet."
)
DRA_PUBLISHED: Final = _gauge(
    "sluice_dra_published",
    (),
    "1 while this node's ResourceSlices are up to date, or deleted if they should be.",
)
DRA_SLICE_WRITES: Final = _counter(
    "sluice_dra_slice_writes", (), "ResourceSlices written or deleted."
)
DRA_CLAIMS: Final = _gauge("sluice_dra_claims", (), "Claims that are prepared, or being prepared.")
DRA_PREPARED: Final = _counter(
    "sluice_dra_claims_prepared", (), "Answers to the kubelet that prepared a claim."
)
DRA_REFUSED: Final = _counter(
    "sluice_dra_claims_refused", (), "Answers to the kubelet that refused a claim; it retries."
)
DRA_RELEASED: Final = _counter("sluice_dra_claims_released", (), "Claims released.")
DRA_READABLE: Final = _gauge(
    "sluice_dra_claims_readable", (), "1 while claims can be read from the API server."
)

QUEUE_CONNECTED: Final = QUEUE.gauge(
    "sluice_queue_link_connected",
    "1 while there is a session with the queue controller.",
    lambda queue: int(queue.connected),
)
QUEUE_SESSION_AGE: Final = QUEUE.gauge(
    "sluice_queue_link_session_age_seconds",
    "Age of the session with the queue controller.",
    lambda queue: queue.session_s,
)
QUEUE_SILENT: Final = QUEUE.gauge(
    "sluice_queue_link_silent_seconds",
    "Time since the last valid message of the controller.",
    lambda queue: queue.silent_s,
)
QUEUE_LEASE: Final = QUEUE.gauge(
    "sluice_queue_link_lease_seconds",
    "Time left of the lease; at 0 nothing new is started, and running work continues.",
    lambda queue: queue.lease_left_s,
)
QUEUE_TERM: Final = QUEUE.gauge(
    "sluice_queue_link_term",
    "Highest fencing term accepted from a controller.",
    lambda queue: queue.term,
)
QUEUE_REVISION: Final = QUEUE.gauge(
    "sluice_queue_link_revision",
    "Highest revision accepted.",
    lambda queue: queue.revision,
)
QUEUE_SESSIONS: Final = QUEUE.counter(
    "sluice_queue_link_sessions",
    "Sessions that were made with the controller.",
    lambda queue: queue.sessions_total,
)
QUEUE_FENCED: Final = QUEUE.counter(
    "sluice_queue_link_fenced_messages",
    "Messages rejected because their term or database is older than one accepted before.",
    lambda queue: queue.fenced_total,
)
QUEUE_DECISIONS: Final = QUEUE.gauge(
    "sluice_queue_link_decisions",
    "Decisions that the node holds; stopped, finished and refused ones are not acknowledged yet.",
    lambda queue: queue.works,
    "state",
)
QUEUE_WAITING: Final = QUEUE.gauge(
    "sluice_queue_link_waiting_processes",
    "Processes of `sluice run --queue` that wait.",
    lambda queue: queue.waiting,
)

HOST_MEMORY: Final = HOST.gauge(
    "sluice_host_memory_bytes",
    "Memory of the host.",
    lambda host: host.memory_bytes,
)
HOST_MEMORY_AVAILABLE: Final = HOST.gauge(
    "sluice_host_memory_available_bytes",
    "Memory of the host that is available to programs.",
    lambda host: host.memory_available_bytes,
)
HOST_CPUS: Final = HOST.gauge(
    "sluice_host_cpus",
    "Processors of the host.",
    lambda host: host.cpus,
)
HOST_LOAD: Final = HOST.gauge(
    "sluice_host_load_average",
    "Load average of the host over one minute.",
    lambda host: host.load_average,
)
OWN_MEMORY: Final = HOST.gauge(
    "sluice_process_resident_memory_bytes",
    "Memory of the daemon and its children.",
    lambda host: {one.name: one.resident_bytes for one in host.processes},
    "process",
)
OWN_CPU: Final = HOST.counter(
    "sluice_process_cpu_seconds",
    "Processor time of the daemon and its children.",
    lambda host: {one.name: one.cpu_seconds_total for one in host.processes},
    "process",
)

GPU_INFO: Final = UNIT.gauge(
    "sluice_gpu_info",
    "What the GPU is, always 1.",
    lambda gpu: {(gpu.name, gpu.pci_bus_id or ""): 1},
    "model",
    "pci_bus_id",
)
GPU_HEALTHY: Final = UNIT.gauge(
    "sluice_gpu_healthy",
    "1 while the GPU is offered, else 0.",
    lambda gpu: int(Health(gpu.health) in OFFERED),
)
GPU_HEALTH_STATE: Final = UNIT.gauge(
    "sluice_gpu_health_state",
    "1 for the state the GPU is in, 0 for the others: healthy, suspect, degraded, unhealthy,"
    " recovering, lost.",
    lambda gpu: {state.value: int(state.value == gpu.health) for state in Health},
    "state",
)
GPU_HEALTH_CHANGES: Final = UNIT.counter(
    "sluice_gpu_health_changes",
    "Times the GPU's state of health changed.",
    lambda gpu: gpu.health_changes_total,
)
GPU_CONTEXT_SWITCH: Final = UNIT.gauge(
    "sluice_gpu_context_switch_seconds",
    "Time of a change from one process to another on the GPU, as its grants measured it; absent"
    " until two of them have.",
    lambda gpu: gpu.context_switch_s,
)
GPU_MEMORY: Final = UNIT.gauge(
    "sluice_gpu_memory_bytes",
    "Memory of the GPU.",
    lambda gpu: gpu.memory_total_bytes,
)
GPU_MEMORY_USED: Final = UNIT.gauge(
    "sluice_gpu_memory_used_bytes",
    "Memory in use on the GPU, by NVML.",
    lambda gpu: gpu.memory_used_bytes,
)
GPU_MEMORY_GRANTED: Final = UNIT.gauge(
    "sluice_gpu_memory_granted_bytes",
    "Memory promised to grants.",
    lambda gpu: gpu.memory_granted_bytes,
)
GPU_SM_GRANTED: Final = UNIT.gauge(
    "sluice_gpu_sm_granted_ratio",
    "Sum of the shares of grants; above 1 with elastic ones.",
    lambda gpu: gpu.share_granted_ratio,
)
GPU_UTILIZATION: Final = UNIT.gauge(
    "sluice_gpu_utilization_ratio",
    "Part of the time in which any kernel ran, by NVML.",
    lambda gpu: gpu.utilization_ratio,
)
GPU_TEMPERATURE: Final = UNIT.gauge(
    "sluice_gpu_temperature_celsius",
    "GPU temperature.",
    lambda gpu: gpu.temperature_celsius,
)
GPU_POWER: Final = CARD.gauge(
    "sluice_gpu_power_watts",
    "Power drawn by the GPU.",
    lambda gpu: gpu.power_watts,
)
GPU_MEMORY_RESERVED: Final = CARD.gauge(
    "sluice_gpu_memory_reserved_bytes",
    "Memory the driver keeps for itself.",
    lambda gpu: gpu.memory_reserved_bytes,
)
GPU_MEMORY_UTILIZATION: Final = CARD.gauge(
    "sluice_gpu_memory_utilization_ratio",
    "Part of the time in which the memory was read or written, by NVML.",
    lambda gpu: gpu.memory_utilization_ratio,
)
GPU_CODEC: Final = CARD.gauge(
    "sluice_gpu_codec_utilization_ratio",
    "Load of the video encoder or decoder.",
    lambda gpu: {"encoder": gpu.encoder_ratio, "decoder": gpu.decoder_ratio},
    "codec",
)
GPU_MEMORY_TEMPERATURE: Final = CARD.gauge(
    "sluice_gpu_memory_temperature_celsius",
    "Temperature of the memory.",
    lambda gpu: gpu.memory_temperature_celsius,
)
GPU_CLOCK: Final = CARD.gauge(
    "sluice_gpu_clock_hertz",
    "Clock of SMs and memory.",
    lambda gpu: {"sm": gpu.sm_clock_hz, "memory": gpu.memory_clock_hz},
    "clock",
)
GPU_POWER_LIMIT: Final = CARD.gauge(
    "sluice_gpu_power_limit_watts",
    "Power limit in force.",
    lambda gpu: gpu.power_limit_watts,
)
GPU_ENERGY: Final = CARD.counter(
    "sluice_gpu_energy_joules",
    "Energy used since the driver was loaded.",
    lambda gpu: gpu.energy_joules_total,
)
GPU_THROTTLED: Final = CARD.gauge(
    "sluice_gpu_throttled",
    "1 while this reason slows the clocks; no series otherwise.",
    lambda gpu: dict.fromkeys(gpu.throttle_reasons or (), 1),
    "reason",
)
GPU_ECC_ERRORS: Final = CARD.counter(
    "sluice_gpu_ecc_errors",
    "Memory errors since the driver was loaded.",
    lambda gpu: {"corrected": gpu.ecc_corrected_total, "uncorrected": gpu.ecc_uncorrected_total},
    "kind",
)
GPU_ROW_REMAPS: Final = CARD.counter(
    "sluice_gpu_row_remaps",
    "Memory rows replaced in the life of the card.",
    lambda gpu: {
        "correctable": gpu.row_remap_correctable_total,
        "uncorrectable": gpu.row_remap_uncorrectable_total,
    },
    "kind",
)
GPU_ROW_REMAP_PENDING: Final = CARD.gauge(
    "sluice_gpu_row_remap_pending",
    "1 while a memory row waits to be replaced at the next reset.",
    lambda gpu: _flag(gpu.row_remap_pending),
)
GPU_ROW_REMAP_FAILED: Final = CARD.gauge(
    "sluice_gpu_row_remap_failed",
    "1 if no spare memory row is left: replace the card.",
    lambda gpu: _flag(gpu.row_remap_failed),
)
GPU_PCIE_REPLAYS: Final = CARD.counter(
    "sluice_gpu_pcie_replays",
    "Packets that had to be sent again over PCIe.",
    lambda gpu: gpu.pcie_replay_total,
)
GPU_NVLINK_BYTES: Final = CARD.counter(
    "sluice_gpu_nvlink_bytes",
    "Data over all NVLinks together.",
    lambda gpu: {"tx": gpu.nvlink_tx_bytes_total, "rx": gpu.nvlink_rx_bytes_total},
    "direction",
)
GPU_NVLINKS: Final = CARD.gauge(
    "sluice_gpu_nvlinks_active",
    "NVLinks that are up.",
    lambda gpu: gpu.nvlinks_active,
)
GPU_XIDS: Final = NODE.counter(
    "sluice_gpu_xid_errors",
    "XID errors since the daemon started, by NVIDIA's number.",
    lambda view: {
        (gpu.uuid, str(gpu.index), str(code)): count
        for gpu in view.readings
        for code, count in sorted(view.xids.get(gpu.uuid, {}).items())
    },
    "gpu",
    "index",
    "xid",
)
GPU_ACTIVE: Final = CARD.gauge(
    "sluice_gpu_active_ratio",
    "Part of the time, or of the unit, in use between two readings, by GPM (Hopper and later).",
    lambda gpu: (
        {}
        if gpu.profile is None
        else {
            "graphics": gpu.profile.graphics_active_ratio,
            "sm": gpu.profile.sm_active_ratio,
            "occupancy": gpu.profile.sm_occupancy_ratio,
            "tensor": gpu.profile.tensor_active_ratio,
            "dram": gpu.profile.dram_active_ratio,
        }
    ),
    "unit",
)
GPU_PCIE_RATE: Final = CARD.gauge(
    "sluice_gpu_pcie_bytes_per_second",
    "Data over PCIe between two readings, by GPM (Hopper and later).",
    lambda gpu: (
        {}
        if gpu.profile is None
        else {"tx": gpu.profile.pcie_tx_bytes_per_s, "rx": gpu.profile.pcie_rx_bytes_per_s}
    ),
    "direction",
)
GPU_PROCESSES: Final = CARD.gauge(
    "sluice_gpu_processes",
    "Processes with a context on the GPU, in a grant or not.",
    lambda gpu: len(gpu.processes),
)
GPU_MIG_INFO: Final = CARD.gauge(
    "sluice_gpu_mig_info",
    "One MIG device of the GPU, always 1.",
    lambda gpu: {
        (one.uuid, one.profile, str(one.gpu_instance), str(one.compute_instance)): 1
        for one in gpu.mig or ()
    },
    "mig",
    "profile",
    "gpu_instance",
    "compute_instance",
)
GPU_GRANTS: Final = UNIT.gauge(
    "sluice_gpu_grants",
    "Grants on the GPU.",
    lambda gpu: gpu.grants,
)
GPU_SLOTS: Final = UNIT.gauge(
    "sluice_gpu_slots",
    "Grants the GPU may carry.",
    lambda gpu: gpu.slots,
)

GRANT_INFO: Final = GRANT.gauge(
    "sluice_grant_info",
    "One live grant, always 1.",
    lambda grant: {(grant.policy.value, grant.state, str(grant.uid)): 1},
    "policy",
    "state",
    "uid",
)
GRANT_PROCESSES: Final = GRANT.gauge(
    "sluice_grant_processes",
    "Registered processes of the grant.",
    lambda grant: grant.processes,
)
GRANT_TAMPERS: Final = GRANT.counter(
    "sluice_grant_tamper_events",
    "Impossible values found in the memory this grant's processes write.",
    lambda grant: grant.tamper_events_total,
)
GRANT_MEMORY_LIMIT: Final = DEVICE.gauge(
    "sluice_grant_memory_limit_bytes",
    "Most GPU memory the grant may hold.",
    lambda device: device.memory_limit_bytes,
)
GRANT_MEMORY_USED: Final = DEVICE.gauge(
    "sluice_grant_memory_used_bytes",
    "GPU memory charged to the grant.",
    lambda device: device.memory_used_bytes,
)
GRANT_MEMORY_PEAK: Final = DEVICE.gauge(
    "sluice_grant_memory_peak_bytes",
    "Most GPU memory the grant ever held.",
    lambda device: device.memory_peak_bytes,
)
GRANT_SM_LIMIT: Final = DEVICE.gauge(
    "sluice_grant_sm_limit_ratio",
    "Share of the GPU's time: the cap, or the weight.",
    lambda device: device.share_ratio,
)
GRANT_SM_USED: Final = DEVICE.gauge(
    "sluice_grant_sm_used_ratio",
    "Part of the last second the grant's kernels ran.",
    lambda device: device.used_ratio,
)
GRANT_BUSY: Final = DEVICE.counter(
    "sluice_grant_busy_seconds",
    "GPU time used by the grant's kernels.",
    lambda device: device.busy_seconds_total,
)
GRANT_THROTTLED: Final = DEVICE.counter(
    "sluice_grant_throttled_seconds",
    "Time threads of the grant waited for their share, all threads together.",
    lambda device: device.throttled_seconds_total,
)
GRANT_LAUNCHES: Final = DEVICE.counter(
    "sluice_grant_launches",
    "Kernel and graph launches.",
    lambda device: device.launches_total,
)
GRANT_ALLOCATIONS: Final = DEVICE.counter(
    "sluice_grant_allocations",
    "Memory allocations made.",
    lambda device: device.allocations_total,
)
GRANT_DENIED: Final = DEVICE.counter(
    "sluice_grant_allocations_denied",
    "Memory allocations refused by the limit.",
    lambda device: device.denied_total,
)

EBPF_UP: Final = _gauge("sluice_ebpf_up", (), "1 while the eBPF programs run, else 0.")
EBPF_RESTARTS: Final = _counter("sluice_ebpf_restarts", (), "Times the eBPF child ended.")
EBPF_LOST: Final = _counter(
    "sluice_ebpf_records_lost",
    (),
    "Records and rows dropped because the kernel or the child had no room.",
)
EBPF_EVENTS: Final = _counter(
    "sluice_ebpf_events",
    ("kind",),
    "Events from the kernel: opens of GPU devices, refused ones, execs, exits, foreign"
    " libraries, altered probes.",
)
EBPF_PROBE: Final = _gauge(
    "sluice_ebpf_probe_seconds",
    ("probe",),
    "Cost of an attached probe per launch on this machine.",
)
AUDIT_WINDOWS: Final = _counter(
    "sluice_audit_windows", (), "Audit windows at the driver's launch entry points."
)
AUDIT_LAUNCHES: Final = _counter(
    "sluice_audit_launches",
    ("seen_by",),
    "Launches in those windows, as counted at the driver and at our interposer before it.",
)

CATALOGUE: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
