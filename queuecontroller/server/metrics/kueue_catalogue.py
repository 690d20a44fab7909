"""The metrics that are Kueue's, by name, kind and labels as of its 0.19, so that its dashboards go
on working; a test compares the list with Kueue's own source.

Those of unadmitted workloads and of resources are always told; Kueue has them behind a gate and a
setting. Labels of one's own (its `metrics.customLabels`) are not told.
"""

from __future__ import annotations

from typing import Final

from sluicecommon.metric import Kind, Metric

_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM
ROLE: Final = "replica_role"
"""`leader` or, for the standalone service, `standalone`. Who only follows tells nothing."""
PRIORITY: Final = "priority_class"
_CLASS: Final = (PRIORITY, ROLE)
_CQ: Final = ("cluster_queue",)
_LQ: Final = ("name", "namespace")
_QUOTA: Final = ("cohort", "cluster_queue", "flavor", "resource", ROLE)
_LQ_QUOTA: Final = (*_LQ, "flavor", "resource", ROLE)
_WHY: Final = ("reason", "underlying_cause")
_PLACES: Final = ("parent_cohort", "root_cohort", ROLE)


def _made(kind: Kind, name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"kueue_{name}", kind, labels, text)


BUILD_INFO: Final = _made(
    _G,
    "build_info",
    ("git_version", "git_commit", "build_date", "go_version", "compiler", "platform"),
    "Our version, always 1. There is no Go: what is Kueue's alone is empty.",
)

# -- cycles ----------------------------------------------------------------------------------------

ATTEMPTS: Final = _made(
    _C,
    "admission_attempts",
    ("result", ROLE),
    "Cycles that looked at a workload: success (one was admitted, or preempts) or inadmissible.",
)
ATTEMPT_DURATION: Final = _made(
    _H, "admission_attempt_duration_seconds", ("result", ROLE), "Length of such a cycle."
)
SKIPS: Final = _made(
    _G,
    "admission_cycle_preemption_skips",
    (*_CQ, ROLE),
    "Workloads that could have preempted in the last cycle but for another's wish.",
)

# -- what became of workloads, by ClusterQueue and by LocalQueue -----------------------------------

RESERVED: Final = _made(
    _C, "quota_reserved_workloads", (*_CQ, *_CLASS), "Workloads that were given quota."
)
LQ_RESERVED: Final = _made(
    _C, "local_queue_quota_reserved_workloads", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
ADMITTED: Final = _made(_C, "admitted_workloads", (*_CQ, *_CLASS), "Workloads admitted.")
LQ_ADMITTED: Final = _made(
    _C, "local_queue_admitted_workloads", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
COHORT_ADMITTED: Final = _made(
    _C,
    "cohort_subtree_admitted_workloads",
    ("cohort", *_CLASS),
    "The same, by cohort, those below it counted too.",
)
FINISHED: Final = _made(_C, "finished_workloads", (*_CQ, *_CLASS), "Workloads that ended.")
LQ_FINISHED: Final = _made(
    _C, "local_queue_finished_workloads", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
EVICTED: Final = _made(
    _C, "evicted_workloads", (*_CQ, *_WHY, *_CLASS), "Workloads that had to stop."
)
LQ_EVICTED: Final = _made(
    _C, "local_queue_evicted_workloads", (*_LQ, *_WHY, *_CLASS), "The same, by LocalQueue."
)
EVICTED_ONCE: Final = _made(
    _C,
    "evicted_workloads_once",
    (*_CQ, *_WHY, *_CLASS),
    "Workloads that had to stop, each counted once for the same reason and cause.",
)
PREEMPTED: Final = _made(
    _C,
    "preempted_workloads",
    ("preempting_cluster_queue", "reason", ROLE),
    "Workloads preempted, by the queue they made way for.",
)
REPLACED: Final = _made(
    _C,
    "replaced_workload_slices",
    (*_CQ, ROLE),
    "Slices of elastic jobs that a larger one took the place of.",
)

# -- how long it took ------------------------------------------------------------------------------

RESERVE_WAIT: Final = _made(
    _H,
    "quota_reserved_wait_time_seconds",
    (*_CQ, *_CLASS),
    "From creation, or from when it was queued again, until quota was reserved.",
)
LQ_RESERVE_WAIT: Final = _made(
    _H, "local_queue_quota_reserved_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
ADMIT_WAIT: Final = _made(
    _H,
    "admission_wait_time_seconds",
    (*_CQ, *_CLASS),
    "From creation, or from when it was queued again, until admission.",
)
LQ_ADMIT_WAIT: Final = _made(
    _H, "local_queue_admission_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
CHECKS_WAIT: Final = _made(
    _H,
    "admission_checks_wait_time_seconds",
    (*_CQ, *_CLASS),
    "From the reservation until admission, of workloads with admission checks.",
)
LQ_CHECKS_WAIT: Final = _made(
    _H,
    "local_queue_admission_checks_wait_time_seconds",
    (*_LQ, *_CLASS),
    "The same, by LocalQueue.",
)
READY_WAIT: Final = _made(
    _H,
    "ready_wait_time_seconds",
    (*_CQ, *_CLASS),
    "From creation, or from when it was queued again, until its pods were first ready.",
)
LQ_READY_WAIT: Final = _made(
    _H, "local_queue_ready_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
ADMITTED_READY: Final = _made(
    _H,
    "admitted_until_ready_wait_time_seconds",
    (*_CQ, *_CLASS),
    "From admission until its pods were ready for the first time.",
)
LQ_ADMITTED_READY: Final = _made(
    _H,
    "local_queue_admitted_until_ready_wait_time_seconds",
    (*_LQ, *_CLASS),
    "The same, by LocalQueue.",
)
READY_EVICTED: Final = _made(
    _H,
    "pods_ready_to_evicted_time_seconds",
    (*_CQ, *_WHY, ROLE),
    "From when its pods were ready until it had to stop.",
)
EVICTION_LATENCY: Final = _made(
    _H,
    "workload_eviction_latency_seconds",
    (*_CQ, "reason", ROLE),
    "From when it had to stop until its quota was free.",
)
CREATION_LATENCY: Final = _made(
    _H,
    "workload_creation_latency_seconds",
    ("job_kind", ROLE),
    "From a job's creation until that of its Workload; in a cluster only.",
)
GATE_REMOVAL: Final = _made(
    _H,
    "pod_scheduling_gate_removal_seconds",
    ("name", *_CQ, "is_group", ROLE),
    "From admission until a pod's gate of that name was lifted; in a cluster only.",
)

# -- how it is now ---------------------------------------------------------------------------------

PENDING: Final = _made(
    _G,
    "pending_workloads",
    (*_CQ, "status", ROLE),
    "Workloads that wait: active (looked at next) or inadmissible (until something changes).",
)
LQ_PENDING: Final = _made(
    _G, "local_queue_pending_workloads", (*_LQ, "status", ROLE), "The same, by LocalQueue."
)
UNADMITTED: Final = _made(
    _G,
    "unadmitted_workloads",
    (*_CQ, *_WHY, ROLE),
    "Workloads that are not admitted: why, and why they hold no quota where that is it.",
)
LQ_UNADMITTED: Final = _made(
    _G,
    "local_queue_unadmitted_workloads",
    (*_LQ, *_CQ, *_WHY, ROLE),
    "The same, by LocalQueue.",
)
RESERVING_ACTIVE: Final = _made(
    _G, "reserving_active_workloads", (*_CQ, ROLE), "Workloads that hold quota now."
)
LQ_RESERVING_ACTIVE: Final = _made(
    _G, "local_queue_reserving_active_workloads", (*_LQ, ROLE), "The same, by LocalQueue."
)
ADMITTED_ACTIVE: Final = _made(
    _G, "admitted_active_workloads", (*_CQ, ROLE), "Workloads that are admitted and not over."
)
LQ_ADMITTED_ACTIVE: Final = _made(
    _G, "local_queue_admitted_active_workloads", (*_LQ, ROLE), "The same, by LocalQueue."
)
COHORT_ADMITTED_ACTIVE: Final = _made(
    _G,
    "cohort_subtree_admitted_active_workloads",
    ("cohort", ROLE),
    "The same, by cohort, those below it counted too.",
)
FINISHED_NOW: Final = _made(
    _G,
    "finished_workloads",
    (*_CQ, ROLE),
    "Workloads that have ended and are still known.",
)
LQ_FINISHED_NOW: Final = _made(
    _G,
    "local_queue_finished_workloads",
    (*_LQ, ROLE),
    "The same, by LocalQueue.",
)
CQ_STATUS: Final = _made(
    _G,
    "cluster_queue_status",
    (*_CQ, "status", ROLE),
    "1 for its status: active, pending (nothing is admitted through it) or terminating.",
)
LQ_STATUS: Final = _made(
    _G,
    "local_queue_status",
    (*_LQ, "active", ROLE),
    "1 for what it is: True, or False while nothing is admitted through it.",
)
CQ_INFO: Final = _made(_G, "cluster_queue_info", (*_CQ, *_PLACES), "One ClusterQueue, always 1.")
COHORT_INFO: Final = _made(_G, "cohort_info", ("cohort", *_PLACES), "One cohort, always 1.")

# -- quota, CPU in cores and all else in its own unit ----------------------------------------------

NOMINAL: Final = _made(_G, "cluster_queue_nominal_quota", _QUOTA, "Nominal quota.")
BORROWING: Final = _made(
    _G, "cluster_queue_borrowing_limit", _QUOTA, "Most it may borrow, where limited."
)
LENDING: Final = _made(_G, "cluster_queue_lending_limit", _QUOTA, "Most it lends, where limited.")
RESERVATION: Final = _made(
    _G, "cluster_queue_resource_reservation", _QUOTA, "Quota held, admitted or not yet."
)
USAGE: Final = _made(
    _G, "cluster_queue_resource_usage", _QUOTA, "Quota held by admitted workloads."
)
RESOURCE_PENDING: Final = _made(
    _G,
    "cluster_queue_resource_pending",
    (*_CQ, "resource", ROLE),
    "What the workloads that wait ask for.",
)
LQ_RESERVATION: Final = _made(
    _G, "local_queue_resource_reservation", _LQ_QUOTA, "Quota held, admitted or not yet."
)
LQ_USAGE: Final = _made(
    _G, "local_queue_resource_usage", _LQ_QUOTA, "Quota held by admitted workloads."
)
WEIGHTED_SHARE: Final = _made(
    _G,
    "cluster_queue_weighted_share",
    (*_CQ, "cohort", ROLE),
    "Dominant share of what is borrowed, in thousandths of what could be, divided by the weight.",
)
COHORT_SHARE: Final = _made(
    _G, "cohort_weighted_share", ("cohort", ROLE), "The same, of a cohort in its parent."
)
COHORT_QUOTA: Final = _made(
    _G,
    "cohort_subtree_quota",
    ("cohort", "flavor", "resource", ROLE),
    "Quota of a cohort with what is lent to it from below.",
)
COHORT_RESERVATION: Final = _made(
    _G,
    "cohort_subtree_resource_reservations",
    ("cohort", "flavor", "resource", ROLE),
    "Quota held below a cohort.",
)
LQ_FAIR_USAGE: Final = _made(
    _G,
    "local_queue_admission_fair_sharing_usage",
    (*_LQ, *_CQ, ROLE),
    "What a LocalQueue has used, weighed by resource and divided by its weight; least goes first.",
)

# -- never told here -------------------------------------------------------------------------------

DISPATCHED: Final = Metric(
    "multikueue_workloads_dispatched",
    _C,
    (*_CQ, "cluster", ROLE),
    "Declared only: nothing is sent to other clusters.",
)
REMOTE_ADMITTED: Final = Metric(
    "multikueue_workloads_admitted", _C, (*_CQ, "cluster", ROLE), "Declared only, likewise."
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(
    one for one in list(globals().values()) if isinstance(one, Metric)
)
