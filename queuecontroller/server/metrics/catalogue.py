"""The catalogue of the controller's metrics: name, kind, labels and help, declared once;
docs/reference/metrics-queue.md is generated from it.

What is Kueue's is in `kueue_metrics`; what is ours starts with `sluice_queue_`. Base units,
`_total` on counters. Nothing is labelled by workload: there may be 100,000.
"""

from __future__ import annotations

from typing import Final

from queuecontroller.server.metrics import kueue_catalogue
from sluicecommon.metric import Kind as Kind
from sluicecommon.metric import Metric as Metric

_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

UP: Final = Metric("sluice_queue_ready", _G, (), "1 while the controller decides.")
TERM: Final = Metric("sluice_queue_term", _G, (), "Fencing term: grows with every start.")
REVISION: Final = Metric("sluice_queue_revision", _G, (), "Revision of the last decision.")
COMMITS: Final = Metric(
    "sluice_queue_commit_seconds", _H, (), "Time to make a change durable in the database."
)
NODES: Final = Metric(
    "sluice_queue_nodes", _G, ("state",), "Nodes: ready, away (lease over) or lost."
)
PODS: Final = Metric(
    "sluice_queue_pods", _G, ("state",), "Pods given to nodes: decided, running, paused."
)
UNPLACED: Final = Metric(
    "sluice_queue_unplaced_workloads", _G, (), "Workloads with quota that no node can take now."
)
REGRESSIONS: Final = Metric(
    "sluice_queue_database_regressions",
    _C,
    (),
    "Nodes that remembered more than the database: it was restored from an old copy.",
)
PREEMPTION_TURNS: Final = Metric(
    "sluice_queue_preemption_turns",
    _C,
    ("cluster_queue",),
    "Preemptions between two workloads that had preempted each other more than three times, by the"
    " ClusterQueue of the one that preempted.",
)
STEPS: Final = Metric(
    "sluice_queue_steps",
    _C,
    (),
    "Steps that changed something; by the number of commits, how many share one.",
)
STALE: Final = Metric(
    "sluice_queue_stale_messages", _C, (), "Messages of earlier node sessions, refused."
)
UNPROVEN: Final = Metric(
    "sluice_queue_unproven_claims",
    _C,
    (),
    "Nodes that claimed to have seen more than the database has, and could not show it: refused.",
)
DUPLICATES: Final = Metric(
    "sluice_queue_duplicate_gpus",
    _C,
    (),
    "GPUs that a node reported although another node has them: they take no work.",
)
DEFECTS: Final = Metric(
    "sluice_queue_defects",
    _C,
    ("at",),
    "Exceptions that nobody thought of, by what was being done. The object that led to one waits;"
    " all else goes on.",
)
CONNECTIONS: Final = Metric(
    "sluice_queue_connections", _G, (), "Connections of nodes, users and admins."
)
TURNED_AWAY: Final = Metric(
    "sluice_queue_turned_away",
    _C,
    ("what",),
    "Connections and calls refused because their caller had too many of them.",
)
GPU_MEMORY: Final = Metric(
    "sluice_queue_gpu_memory_bytes",
    _G,
    ("node", "state"),
    "GPU memory of connected nodes: capacity, given, and outside (used by what is not queued).",
)
FRAGMENTATION: Final = Metric(
    "sluice_queue_gpu_fragmentation_ratio",
    _G,
    ("request", "resource"),
    "Part of the free GPU memory or time that requests of this size (of one GPU, or a MIG profile)"
    " cannot have.",
)
GPU_FITS: Final = Metric(
    "sluice_queue_gpu_requests_that_fit",
    _G,
    ("request",),
    "Requests of this size that still find room on the nodes.",
)
LOOP_LAST_OK: Final = Metric(
    "sluice_queue_loop_last_ok_timestamp_seconds", _G, ("loop",), "When a loop last came round."
)

DISPLACED: Final = Metric(
    "sluice_queue_displaced_pods",
    _C,
    (),
    "Pods evicted for one of higher priority that lacked nothing but shares of GPUs.",
)

# HAMi's scheduler's names, for its dashboards: of namespaces, and of other vendors' devices.
_DEVICE: Final = ("node", "device_uuid", "device_index", "device_type")
HAMI_INFO: Final = Metric("hami_build_info", _G, ("version",), "Our version, always 1.")
QUOTA_USED: Final = Metric(
    "hami_resource_quota_used",
    _G,
    ("namespace", "quota_name", "limit"),
    "What the pods of a namespace take of a resource, each card counted, where any does.",
)
QUOTA_LIMIT: Final = Metric(
    "hami_resource_quota_limit",
    _G,
    ("namespace", "quota_name"),
    "What ResourceQuotas allow of it.",
)
DEVICE_MEMORY: Final = Metric(
    "hami_gpu_memory_limit_bytes", _G, _DEVICE, "Memory of another vendor's device."
)
DEVICE_MEMORY_GIVEN: Final = Metric(
    "hami_gpu_memory_allocated_bytes", _G, _DEVICE, "Of it, what pods were given."
)
DEVICE_CORES: Final = Metric(
    "hami_gpu_core_limit_ratio", _G, _DEVICE, "Cores of the device, in its vendor's unit."
)
DEVICE_CORES_GIVEN: Final = Metric(
    "hami_gpu_core_allocated_ratio", _G, _DEVICE, "Of them, what pods were promised."
)
DEVICE_OVERVIEW: Final = Metric(
    "hami_node_gpu_overview",
    _G,
    (*_DEVICE, "device_cores", "device_memory_limit"),
    "What pods were given of its memory (bytes), beside its cores and its memory (MiB).",
)
DEVICE_MEMORY_RATIO: Final = Metric(
    "hami_node_gpu_memory_allocated_ratio",
    _G,
    ("node", "device_uuid", "device_index"),
    "The same as a part of its memory, 0 to 1.",
)
DEVICE_SHARED: Final = Metric("hami_gpu_shared_count", _G, _DEVICE, "Pods that have a part of it.")

CATALOGUE: Final = (
    *kueue_catalogue.CATALOGUE,
    UP,
    TERM,
    REVISION,
    COMMITS,
    STEPS,
    PREEMPTION_TURNS,
    NODES,
    PODS,
    UNPLACED,
    REGRESSIONS,
    STALE,
    UNPROVEN,
    DUPLICATES,
    DEFECTS,
    CONNECTIONS,
    TURNED_AWAY,
    GPU_MEMORY,
    FRAGMENTATION,
    GPU_FITS,
    LOOP_LAST_OK,
    DISPLACED,
    HAMI_INFO,
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
