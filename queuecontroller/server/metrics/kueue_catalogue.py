"""Kueue's metrics, with the names, kinds and labels of its 0.19 and 0.20, so that its dashboards
keep working; a test compares the list with Kueue's source.

The metrics of unadmitted workloads and of resources are always exported, which in Kueue need a
feature gate and a setting. Custom labels (its `metrics.customLabels`) are not exported.
"""

from __future__ import annotations

from typing import Final

from sluicecommon.metric import Kind, Metric

_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM
ROLE: Final = "replica_role"
"""`leader`, or `standalone` without a cluster. A replica that is not the leader exports nothing."""
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
    "Version of the controller, always 1; the labels about Go are empty.",
)

# -- cycles ----------------------------------------------------------------------------------------

ATTEMPTS: Final = _made(
    _C,
    "admission_attempts",
    ("result", ROLE),
    "Scheduling cycles: success (a workload was admitted, or preempts) or inadmissible.",
)
ATTEMPT_DURATION: Final = _made(
    _H, "admission_attempt_duration_seconds", ("result", ROLE), "Duration of a scheduling cycle."
)
SKIPS: Final = _made(
    _G,
    "admission_cycle_preemption_skips",
    (*_CQ, ROLE),
    "Workloads whose preemption was skipped in the last cycle because of another's preemption.",
)

# -- counters of workloads, by ClusterQueue and by LocalQueue --------------------------------------

RESERVED: Final = _made(
    _C, "quota_reserved_workloads", (*_CQ, *_CLASS), "Workloads that had quota reserved."
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
    "The same, by cohort, including the cohorts below it.",
)
FINISHED: Final = _made(_C, "finished_workloads", (*_CQ, *_CLASS), "Workloads that finished.")
LQ_FINISHED: Final = _made(
    _C, "local_queue_finished_workloads", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
EVICTED: Final = _made(_C, "evicted_workloads", (*_CQ, *_WHY, *_CLASS), "Workloads evicted.")
LQ_EVICTED: Final = _made(
    _C, "local_queue_evicted_workloads", (*_LQ, *_WHY, *_CLASS), "The same, by LocalQueue."
)
EVICTED_ONCE: Final = _made(
    _C,
    "evicted_workloads_once",
    (*_CQ, *_WHY, *_CLASS),
    "Workloads evicted, each counted once per reason and cause.",
)
PREEMPTED: Final = _made(
    _C,
    "preempted_workloads",
    ("preempting_cluster_queue", "reason", ROLE),
    "Workloads preempted, by the preemptor's ClusterQueue.",
)
REPLACED: Final = _made(
    _C,
    "replaced_workload_slices",
    (*_CQ, ROLE),
    "Workload slices of elastic jobs replaced by a larger slice.",
)

# -- durations -------------------------------------------------------------------------------------

RESERVE_WAIT: Final = _made(
    _H,
    "quota_reserved_wait_time_seconds",
    (*_CQ, *_CLASS),
    "Time from creation or requeueing until quota was reserved.",
)
LQ_RESERVE_WAIT: Final = _made(
    _H, "local_queue_quota_reserved_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
ADMIT_WAIT: Final = _made(
    _H,
    "admission_wait_time_seconds",
    (*_CQ, *_CLASS),
    "Time from creation or requeueing until admission.",
)
LQ_ADMIT_WAIT: Final = _made(
    _H, "local_queue_admission_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
CHECKS_WAIT: Final = _made(
    _H,
    "admission_checks_wait_time_seconds",
    (*_CQ, *_CLASS),
    "Time from the quota reservation until admission, of workloads with admission checks.",
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
    "Time from creation or requeueing until all pods were ready.",
)
LQ_READY_WAIT: Final = _made(
    _H, "local_queue_ready_wait_time_seconds", (*_LQ, *_CLASS), "The same, by LocalQueue."
)
ADMITTED_READY: Final = _made(
    _H,
    "admitted_until_ready_wait_time_seconds",
    (*_CQ, *_CLASS),
    "Time from admission until all pods were ready for the first time.",
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
    "Time from when all pods were ready until the eviction.",
)
EVICTION_LATENCY: Final = _made(
    _H,
    "workload_eviction_latency_seconds",
    (*_CQ, "reason", ROLE),
    "Time from the eviction until the quota was released.",
)
CREATION_LATENCY: Final = _made(
    _H,
    "workload_creation_latency_seconds",
    ("job_kind", ROLE),
    "Time from a job's creation until its Workload's creation; in a cluster only.",
)
GATE_REMOVAL: Final = _made(
    _H,
    "pod_scheduling_gate_removal_seconds",
    ("name", *_CQ, "is_group", ROLE),
    "Time from admission until the scheduling gate of that name was removed; in a cluster only.",
)

# -- gauges ---------------------------------------------------------------------------------------

PENDING: Final = _made(
    _G,
    "pending_workloads",
    (*_CQ, "status", ROLE),
    "Pending workloads: active (considered next) or inadmissible (until a relevant change).",
)
LQ_PENDING: Final = _made(
    _G, "local_queue_pending_workloads", (*_LQ, "status", ROLE), "The same, by LocalQueue."
)
UNADMITTED: Final = _made(
    _G,
    "unadmitted_workloads",
    (*_CQ, *_WHY, ROLE),
    "Workloads that are not admitted, by reason; the cause says why no quota is reserved.",
)
LQ_UNADMITTED: Final = _made(
    _G,
    "local_queue_unadmitted_workloads",
    (*_LQ, *_CQ, *_WHY, ROLE),
    "The same, by LocalQueue.",
)
RESERVING_ACTIVE: Final = _made(
    _G, "reserving_active_workloads", (*_CQ, ROLE), "Workloads with quota reserved now."
)
LQ_RESERVING_ACTIVE: Final = _made(
    _G, "local_queue_reserving_active_workloads", (*_LQ, ROLE), "The same, by LocalQueue."
)
ADMITTED_ACTIVE: Final = _made(
    _G, "admitted_active_workloads", (*_CQ, ROLE), "Workloads that are admitted and not finished."
)
LQ_ADMITTED_ACTIVE: Final = _made(
    _G, "local_queue_admitted_active_workloads", (*_LQ, ROLE), "The same, by LocalQueue."
)
COHORT_ADMITTED_ACTIVE: Final = _made(
    _G,
    "cohort_subtree_admitted_active_workloads",
    ("cohort", ROLE),
    "The same, by cohort, including the cohorts below it.",
)
FINISHED_NOW: Final = _made(
    _G,
    "finished_workloads",
    (*_CQ, ROLE),
    "Finished workloads that still exist.",
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
    "1 for the current status: active, pending (it admits nothing) or terminating.",
)
LQ_STATUS: Final = _made(
    _G,
    "local_queue_status",
    (*_LQ, "active", ROLE),
    "1 for the current value: True, or False while it admits nothing.",
)
CQ_INFO: Final = _made(_G, "cluster_queue_info", (*_CQ, *_PLACES), "One ClusterQueue, always 1.")
COHORT_INFO: Final = _made(_G, "cohort_info", ("cohort", *_PLACES), "One cohort, always 1.")

# -- quota, CPU in cores and other resources in their uni----------------------------------------

NOMINAL: Final = _made(_G, "cluster_queue_nominal_quota", _QUOTA, "Nominal quota.")
BORROWING: Final = _made(
    _G, "cluster_queue_borrowing_limit", _QUOTA, "Borrowing limit; no series without one."
)
LENDING: Final = _made(
    _G, "cluster_queue_lending_limit", _QUOTA, "Lending limit; no series without one."
)
RESERVATION: Final = _made(
    _G,
    "cluster_queue_resource_reservation",
    _QUOTA,
    "Quota reserved by workloads, admitted or not.",
)
USAGE: Final = _made(
    _G, "cluster_queue_resource_usage", _QUOTA, "Quota used by admitted workloads."
)
RESOURCE_PENDING: Final = _made(
    _G,
    "cluster_queue_resource_pending",
    (*_CQ, "resource", ROLE),
    "Resources that pending workloads request.",
)
LQ_RESERVATION: Final = _made(
    _G,
    "local_queue_resource_reservation",
    _LQ_QUOTA,
    "Quota reserved by workloads, admitted or not.",
)
LQ_USAGE: Final = _made(
    _G, "local_queue_resource_usage", _LQ_QUOTA, "Quota used by admitted workloads."
)
WEIGHTED_SHARE: Final = _made(
    _G,
    "cluster_queue_weighted_share",
    (*_CQ, "cohort", ROLE),
    "Dominant share of borrowed quota, in thousandths of the lendable quota, by weight.",
)
COHORT_SHARE: Final = _made(
    _G, "cohort_weighted_share", ("cohort", ROLE), "The same, of a cohort in its parent."
)
COHORT_QUOTA: Final = _made(
    _G,
    "cohort_subtree_quota",
    ("cohort", "flavor", "resource", ROLE),
    "Quota of a cohort, including what the queues and cohorts below it lend.",
)
COHORT_RESERVATION: Final = _made(
    _G,
    "cohort_subtree_resource_reservations",
    ("cohort", "flavor", "resource", ROLE),
    "Quota reserved below a cohort.",
)
LQ_FAIR_USAGE: Final = _made(
    _G,
    "local_queue_admission_fair_sharing_usage",
    (*_LQ, *_CQ, ROLE),
    "Past usage of a LocalQueue, weighted by resource and divided by its weight.",
)

# -- of Kueue 0.20 ---------------------------------------------------------------------------------

PENDING_SHAPES: Final = _made(
    _G,
    "pending_scheduling_hashes",
    (*_CQ, "status", ROLE),
    "Distinct pending workloads: those that are equal for the scheduler count as one.",
)
RECOVERY_WAIT: Final = _made(
    _H,
    "workload_recovery_wait_time_seconds",
    (*_CQ, *_CLASS),
    "Time from when pods were no longer ready until all were ready again.",
)
LQ_RECOVERY_WAIT: Final = _made(
    _H,
    "local_queue_workload_recovery_wait_time_seconds",
    (*_LQ, *_CLASS),
    "The same, by LocalQueue.",
)
EXECUTION: Final = _made(
    _H,
    "execution_time_seconds",
    (*_CQ, *_CLASS),
    "Time that finished workloads were admitted, over all their admissions.",
)
LQ_EXECUTION: Final = _made(
    _H,
    "local_queue_execution_time_seconds",
    (*_LQ, *_CLASS),
    "The same, by LocalQueue.",
)
RECOMPUTED: Final = _made(
    _C,
    "preemption_target_recomputations",
    (*_CQ, "result", ROLE),
    "Searches for other victims, because another workload of the cycle took them: new_targets,"
    " deferred_fit (it fits once those have gone) or skipped.",
)
# -- MultiKueue ------------------------------------------------------------------------------------

DISPATCHED: Final = Metric(
    "multikueue_workloads_dispatched",
    _C,
    (*_CQ, "cluster", ROLE),
    "Copies of workloads that were created in workers.",
)
REMOTE_ADMITTED: Final = Metric(
    "multikueue_workloads_admitted",
    _C,
    (*_CQ, "cluster", ROLE),
    "Workloads that a worker admitted.",
)
REMOTE_EVICTED: Final = Metric(
    "multikueue_workloads_evicted",
    _C,
    (*_CQ, "cluster", ROLE),
    "Workloads that lost their worker: evicted there, or the worker was lost.",
)
WORKER_STATUS: Final = Metric(
    "multikueue_cluster_status",
    _G,
    (*_CQ, "cluster", "active", ROLE),
    "Condition Active of the workers of a ClusterQueue: 1 for the status it has.",
)

NEWER: Final = (
    *(PENDING_SHAPES, RECOVERY_WAIT, LQ_RECOVERY_WAIT, EXECUTION, LQ_EXECUTION),
    *(RECOMPUTED, REMOTE_EVICTED, WORKER_STATUS),
)
"""Metrics that 0.19 lacks. They are exported whatever the line."""

CATALOGUE: Final[tuple[Metric, ...]] = tuple(
    one for one in list(globals().values()) if isinstance(one, Metric)
)
