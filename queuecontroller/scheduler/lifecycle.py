"""Evictions that no preemption causes, and when the evicted workloads are requeued.

The first of these that applies decides: the workload was deactivated, an admission check rejected
it or requires a retry, its queue is drained, it exceeded its maximum execution time, its pods were
not ready in time. Reasons are Kueue's. Back-off after a timeout doubles from a base up to a
maximum; past a limit of attempts the workload is deactivated.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Final

from queuecontroller.scheduler.model.objects import (
    CheckState,
    ClusterQueue,
    Condition,
    LocalQueue,
    RequeueState,
    StopPolicy,
    Workload,
)
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    DEACTIVATED_FOR,
    PODS_READY,
    WAIT_FOR_RECOVERY,
    WAIT_FOR_SCHEDULING,
    WAIT_FOR_START,
    EvictionReason,
)

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PodsReadySettings:
    """Kueue's waitForPodsReady; disabled without a timeout."""

    timeout_s: int | None = None
    """Seconds from admission until the pods must be ready."""
    recovery_timeout_s: int | None = None
    """Seconds until pods that stopped being ready must be ready again; None: no limit."""
    unscheduled_timeout_s: int | None = None
    """Seconds from admission until all pods must be on nodes; from then on `timeout_s` counts.
    None: no limit of its own."""
    backoff_base_s: int = 60
    """Seconds before the first requeue; Kueue's default."""
    backoff_max_s: int = 3600
    """Longest back-off in seconds; Kueue's default."""
    backoff_limit_count: int | None = None
    """Requeues before the workload is deactivated; None: never."""
    own: bool = False
    """True if a workload's own timeouts count before these."""

    def of(self, workload: Workload) -> tuple[int | None, int | None]:
        """The timeout of a workload and the one of its recovery; None: no limit."""
        if self.own and workload.ready_timeouts_s is not None:
            timeout_s, recovery_s = workload.ready_timeouts_s
            return timeout_s, recovery_s or None
        return self.timeout_s, self.recovery_timeout_s


@dataclass(frozen=True, slots=True)
class Eviction:
    """The workload has to stop. A deactivated one is not requeued until a user activates it."""

    reason: EvictionReason
    message: str
    deactivates: bool = False
    requeue: RequeueState | None = None
    """New requeue state, where the reason counts attempts."""
    cause: str = ""
    """Kueue's underlying cause of the reason; empty if the reason contains it."""


def backoff_ns(attempt: int, key: str, settings: PodsReadySettings) -> int:
    """Back-off before requeue number `attempt`, counted from 1, in ns.

    Up to a ten-thousandth is added, derived from the workload's name instead of a random number, so
    that workloads evicted together are not requeued together and a replay stays deterministic.
    """
    # The exponent is bounded: 2**60 seconds are more than any maximum.
    seconds = min(settings.backoff_base_s << min(attempt - 1, 60), settings.backoff_max_s)
    share = zlib.crc32(f"{key}#{attempt}".encode()) % 1000
    return seconds * SECOND_NS + seconds * (SECOND_NS // 10_000) * share // 1000


def due_eviction(
    workload: Workload,
    now_ns: int,
    settings: PodsReadySettings,
    cluster_queue: ClusterQueue | None = None,
    local_queue: LocalQueue | None = None,
) -> Eviction | None:
    """The eviction that is due now, else None."""
    if not workload.active:
        return Eviction(EvictionReason.DEACTIVATED, "The workload is deactivated", True)
    for check in workload.admission_checks:
        if check.state is CheckState.REJECTED:
            message = f"Admission check {check.name} rejected the workload: {check.message}"
            return Eviction(EvictionReason.REJECTED, message, True)
    for check in workload.admission_checks:
        if check.state is CheckState.RETRY:
            message = f"Admission check {check.name} requests a retry: {check.message}"
            again = _after_checks(workload, now_ns)
            return Eviction(EvictionReason.ADMISSION_CHECK, message, requeue=again)
    drain = StopPolicy.HOLD_AND_DRAIN
    if cluster_queue is not None and cluster_queue.stop_policy is drain:
        message = "The ClusterQueue is stopped"
        return Eviction(EvictionReason.CLUSTER_QUEUE_STOPPED, message)
    if local_queue is not None and local_queue.stop_policy is drain:
        message = "The LocalQueue is stopped"
        return Eviction(EvictionReason.LOCAL_QUEUE_STOPPED, message)
    return _ran_too_long(workload, now_ns) or _not_ready(workload, now_ns, settings)


def _after_checks(workload: Workload, now_ns: int) -> RequeueState | None:
    """Requeue state with the latest retry time of its checks; None: requeue at once."""
    every = workload.admission_checks
    pauses = [one.retry_after_s or 0 for one in every if one.state is CheckState.RETRY]
    longest_s = max(pauses, default=0)
    if not longest_s:
        return None
    return replace(workload.requeue_state, requeue_at_ns=now_ns + longest_s * SECOND_NS)


def due_at_ns(workload: Workload, settings: PodsReadySettings) -> int | None:
    """Time at which the result of `due_eviction` may change without any event, in ns."""
    times = (execution_ends_ns(workload), _must_be_ready_ns(workload, settings))
    return min((time for time in times if time is not None), default=None)


def execution_ends_ns(workload: Workload) -> int | None:
    """Time at which maximumExecutionTimeSeconds is reached, in ns; None without a limit."""
    admitted = workload.condition(ADMITTED)
    if workload.max_execution_s is None or admitted is None or not admitted.status:
        return None
    left_s = max(0, workload.max_execution_s - workload.past_execution_s)
    return admitted.changed_ns + left_s * SECOND_NS


def _ran_too_long(workload: Workload, now_ns: int) -> Eviction | None:
    ends_ns = execution_ends_ns(workload)
    if ends_ns is None or now_ns < ends_ns:
        return None
    message = f"ran longer than {workload.max_execution_s} s"
    return Eviction(EvictionReason.MAXIMUM_EXECUTION_TIME, message, True)


def _must_be_ready_ns(workload: Workload, settings: PodsReadySettings) -> int | None:
    admitted, ready = workload.condition(ADMITTED), workload.condition(PODS_READY)
    timeout_s, recovery_timeout_s = settings.of(workload)
    if timeout_s is None or admitted is None or not admitted.status:
        return None
    unscheduled_s = settings.unscheduled_timeout_s
    if ready is not None and not ready.status and ready.reason == WAIT_FOR_SCHEDULING:
        first_s = timeout_s if unscheduled_s is None else min(unscheduled_s, timeout_s)
        return admitted.changed_ns + first_s * SECOND_NS
    if ready is None or ready.changed_ns < admitted.changed_ns:
        return admitted.changed_ns + timeout_s * SECOND_NS
    if ready.status:
        return None
    if ready.reason == WAIT_FOR_START and unscheduled_s is not None:
        return ready.changed_ns + timeout_s * SECOND_NS
    if ready.reason != WAIT_FOR_RECOVERY:
        return admitted.changed_ns + timeout_s * SECOND_NS
    if recovery_timeout_s is None:
        return None
    return ready.changed_ns + recovery_timeout_s * SECOND_NS


def _not_ready(workload: Workload, now_ns: int, settings: PodsReadySettings) -> Eviction | None:
    due_ns = _must_be_ready_ns(workload, settings)
    if due_ns is None or now_ns < due_ns:
        return None
    attempt = workload.requeue_state.count + 1
    limit = settings.backoff_limit_count
    if limit is not None and attempt > limit:
        message = f"requeued {limit} times and its pods were never ready in time"
        return Eviction(EvictionReason.REQUEUING_LIMIT, message, True)
    again_ns = now_ns + backoff_ns(attempt, workload.key, settings)
    requeue = RequeueState(attempt, again_ns)
    ready, admitted = workload.condition(PODS_READY), workload.condition(ADMITTED)
    assert admitted is not None
    since_ns = ready.changed_ns if ready is not None else 0
    recovers = ready is not None and ready.reason == WAIT_FOR_RECOVERY
    timeout_s, recovery_timeout_s = settings.of(workload)
    if recovers and since_ns >= admitted.changed_ns:
        message = f"pods were not ready again after {recovery_timeout_s} s"
        cause = WAIT_FOR_RECOVERY
    elif ready is not None and ready.reason == WAIT_FOR_SCHEDULING:
        message = f"pods were not on nodes {settings.unscheduled_timeout_s} s after admission"
        cause = WAIT_FOR_SCHEDULING
    else:
        message = f"pods were not ready {timeout_s} s after admission"
        cause = WAIT_FOR_START
    return Eviction(EvictionReason.PODS_READY_TIMEOUT, message, requeue=requeue, cause=cause)


def reason_and_cause(evicted: Condition) -> tuple[str, str]:
    """Kueue's `reason` and `underlyingCause` of an eviction, by its condition."""
    if evicted.reason.startswith(DEACTIVATED_FOR):
        return str(EvictionReason.DEACTIVATED), evicted.reason.removeprefix(DEACTIVATED_FOR)
    return evicted.reason, evicted.cause
