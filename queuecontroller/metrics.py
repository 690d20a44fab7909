"""The catalogue of the controller's metrics: name, kind, labels and help, declared once;
docs/queue/metrics.md is checked against it.

Where a figure means what Kueue's means it has Kueue's name, so that dashboards go on working; what
is ours starts with `sluice_queue_`. Base units, `_total` on counters. Nothing is labelled by
workload: there may be 100,000.
"""

from __future__ import annotations

from typing import Final

from sluicecommon.metric import Kind as Kind
from sluicecommon.metric import Metric as Metric

_CQ: Final = ("cluster_queue",)
_QUOTA: Final = ("cohort", "cluster_queue", "flavor", "resource")
_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

BUILD_INFO: Final = Metric("kueue_build_info", _G, ("version",), "Version, always 1.")
ATTEMPTS: Final = Metric(
    "kueue_admission_attempts",
    _C,
    ("result",),
    "Cycles that looked at a workload: success (one was admitted, or preempts) or inadmissible.",
)
ATTEMPT_DURATION: Final = Metric(
    "kueue_admission_attempt_duration_seconds", _H, (), "Length of such a cycle."
)
PENDING: Final = Metric(
    "kueue_pending_workloads",
    _G,
    ("cluster_queue", "status"),
    "Workloads that wait: active (looked at next) or inadmissible (until something changes).",
)
RESERVED: Final = Metric(
    "kueue_quota_reserved_workloads", _C, _CQ, "Workloads that were given quota."
)
RESERVE_WAIT: Final = Metric(
    "kueue_quota_reserved_wait_time_seconds", _H, _CQ, "From creation until quota was reserved."
)
ADMITTED: Final = Metric("kueue_admitted_workloads", _C, _CQ, "Workloads admitted.")
ADMIT_WAIT: Final = Metric(
    "kueue_admission_wait_time_seconds", _H, _CQ, "From creation until admission."
)
RESERVING_ACTIVE: Final = Metric(
    "kueue_reserving_active_workloads", _G, _CQ, "Workloads that hold quota now."
)
ADMITTED_ACTIVE: Final = Metric(
    "kueue_admitted_active_workloads", _G, _CQ, "Workloads that are admitted and not over."
)
EVICTED: Final = Metric(
    "kueue_evicted_workloads", _C, ("cluster_queue", "reason"), "Workloads that had to stop."
)
PREEMPTED: Final = Metric(
    "kueue_preempted_workloads",
    _C,
    ("preempting_cluster_queue", "reason"),
    "Workloads preempted, by the queue they made way for.",
)
FINISHED: Final = Metric("kueue_finished_workloads", _C, _CQ, "Workloads that ended.")
CQ_INFO: Final = Metric(
    "kueue_cluster_queue_info",
    _G,
    ("cluster_queue", "cohort", "queueing_strategy"),
    "One ClusterQueue, always 1.",
)
CQ_STATUS: Final = Metric(
    "kueue_cluster_queue_status",
    _G,
    ("cluster_queue", "status"),
    "1 for the status it has: active, or pending while nothing is admitted through it.",
)
NOMINAL: Final = Metric("kueue_cluster_queue_nominal_quota", _G, _QUOTA, "Nominal quota.")
BORROWING: Final = Metric(
    "kueue_cluster_queue_borrowing_limit", _G, _QUOTA, "Most it may borrow, where limited."
)
LENDING: Final = Metric(
    "kueue_cluster_queue_lending_limit", _G, _QUOTA, "Most it lends, where limited."
)
RESERVATION: Final = Metric(
    "kueue_cluster_queue_resource_reservation", _G, _QUOTA, "Quota held, admitted or not yet."
)
USAGE: Final = Metric(
    "kueue_cluster_queue_resource_usage", _G, _QUOTA, "Quota held by admitted workloads."
)
WEIGHTED_SHARE: Final = Metric(
    "kueue_cluster_queue_weighted_share",
    _G,
    ("cluster_queue", "cohort"),
    "Dominant share of what is borrowed, in thousandths of what could be, divided by the weight.",
)
LOCAL_QUEUE_USAGE: Final = Metric(
    "kueue_local_queue_admission_fair_sharing_usage",
    _G,
    ("name", "namespace"),
    "What a LocalQueue has used, weighed by resource and divided by its weight; least goes first.",
)
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
    BUILD_INFO,
    ATTEMPTS,
    ATTEMPT_DURATION,
    PENDING,
    RESERVED,
    RESERVE_WAIT,
    ADMITTED,
    ADMIT_WAIT,
    RESERVING_ACTIVE,
    ADMITTED_ACTIVE,
    EVICTED,
    PREEMPTED,
    FINISHED,
    CQ_INFO,
    CQ_STATUS,
    NOMINAL,
    BORROWING,
    LENDING,
    RESERVATION,
    USAGE,
    WEIGHTED_SHARE,
    LOCAL_QUEUE_USAGE,
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
    CONNECTIONS,
    TURNED_AWAY,
    GPU_MEMORY,
    FRAGMENTATION,
    GPU_FITS,
    LOOP_LAST_OK,
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
