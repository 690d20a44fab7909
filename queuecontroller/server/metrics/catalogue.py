"""The catalogue of the controller's metrics: name, kind, labels and help, declared once;
docs/reference/metrics-queue.md is generated from it.

Kueue's metrics are in `kueue_catalogue`; Sluice's own begin with `sluice_queue_`. Units are base
units. No metric has a label for the workload, since there may be 100,000 workloads.
"""

from __future__ import annotations

from typing import Final

from queuecontroller.server.metrics import kueue_catalogue
from sluicecommon.hami import metrics as hami
from sluicecommon.metric import Kind as Kind
from sluicecommon.metric import Metric as Metric

_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

UP: Final = Metric("sluice_queue_ready", _G, (), "1 while the controller schedules.")
TERM: Final = Metric("sluice_queue_term", _G, (), "Fencing term; it increases with every start.")
REVISION: Final = Metric("sluice_queue_revision", _G, (), "Revision of the last decision.")
COMMITS: Final = Metric(
    "sluice_queue_commit_seconds", _H, (), "Time to make a change durable in the database."
)
STEPS: Final = Metric(
    "sluice_queue_steps",
    _C,
    (),
    "Steps that changed the state; divided by the number of commits, the steps per commit.",
)
PREEMPTION_TURNS: Final = Metric(
    "sluice_queue_preemption_turns",
    _C,
    ("cluster_queue",),
    "Preemptions between two workloads that had preempted each other more than three times, by the"
    " preemptor's ClusterQueue.",
)
NODES: Final = Metric(
    "sluice_queue_nodes", _G, ("state",), "Nodes: ready, away (lease over) or lost."
)
PODS: Final = Metric(
    "sluice_queue_pods",
    _G,
    ("state",),
    "Pods with GPUs on nodes: decided, running, paused; in mode kubernetes also reserved (no pod"
    " yet), starting and terminating.",
)
UNPLACED: Final = Metric(
    "sluice_queue_unplaced_workloads",
    _G,
    (),
    "Workloads with quota reserved that fit on no node now.",
)
REGRESSIONS: Final = Metric(
    "sluice_queue_database_regressions",
    _C,
    (),
    "Nodes that had seen newer revisions than the database: it is an old backup.",
)
STALE: Final = Metric(
    "sluice_queue_stale_messages", _C, (), "Messages of ended node sessions, refused."
)
UNPROVEN: Final = Metric(
    "sluice_queue_unproven_claims",
    _C,
    (),
    "Nodes refused because they claimed newer revisions than the database without a valid seal.",
)
DUPLICATES: Final = Metric(
    "sluice_queue_duplicate_gpus",
    _C,
    (),
    "GPUs reported by two nodes; nothing is placed on them.",
)
DEFECTS: Final = Metric(
    "sluice_queue_defects",
    _C,
    ("at",),
    "Unexpected exceptions, by the operation. The object that caused one is set aside; everything"
    " else continues.",
)
CONNECTIONS: Final = Metric(
    "sluice_queue_connections", _G, (), "Connections of nodes, users and admins."
)
TURNED_AWAY: Final = Metric(
    "sluice_queue_turned_away",
    _C,
    ("what",),
    "Connections and calls refused because the caller exceeded its limit.",
)
GPU_MEMORY: Final = Metric(
    "sluice_queue_gpu_memory_bytes",
    _G,
    ("node", "state"),
    "GPU memory of connected nodes: capacity, given to workloads and pods, and outside (used by"
    " programs without either).",
)
FRAGMENTATION: Final = Metric(
    "sluice_queue_gpu_fragmentation_ratio",
    _G,
    ("request", "resource"),
    "Part of the free GPU memory or time that requests of this size (part of one GPU, or a MIG"
    " profile) cannot use.",
)
GPU_FITS: Final = Metric(
    "sluice_queue_gpu_requests_that_fit",
    _G,
    ("request",),
    "Requests of this size that still fit on the nodes.",
)
LOOP_LAST_OK: Final = Metric(
    "sluice_queue_loop_last_ok_timestamp_seconds",
    _G,
    ("loop",),
    "When a loop last completed a round.",
)
DISPLACED: Final = Metric(
    "sluice_queue_displaced_pods",
    _C,
    (),
    "Pods preempted for a pod of higher priority that lacked only GPU shares.",
)

CATALOGUE: Final = (
    *kueue_catalogue.CATALOGUE,
    *(one for one in list(globals().values()) if isinstance(one, Metric)),
    *hami.SCHEDULER,
)
