"""Conditions of a workload by Kueue's names, and the phase that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from queuecontroller.scheduler.model.objects import Admission, Condition, Workload
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    BLOCKED_ON_PREEMPTION_GATES,
    CHECKPOINT_FAILED,
    CHECKPOINT_REQUESTED,
    CHECKPOINTED,
    EVICTED,
    FINISHED,
    ON_HOLD,
    PODS_READY,
    PREEMPTED,
    QUOTA_RESERVED,
    REQUEUED,
    RESTORED,
    RESTORING,
    TO_BE_REPLACED,
    WAIT_FOR_SCHEDULING,
    WAIT_FOR_START,
    PendingReason,
)

TO_BE_SAVED: Final = "Its pods are told to write their GPU memory to the memory of their nodes"
SAVED: Final = "The GPU memory of its pods is in the memory of their nodes"
TO_BE_RESTORED: Final = "Its pods are told to read their GPU memory back"
_UNDER_WAY: Final = (CHECKPOINT_REQUESTED, CHECKPOINTED, RESTORING)


def with_condition(
    workload: Workload,
    kind: str,
    status: bool,
    reason: str,
    message: str,
    now_ns: int,
    **changes: Any,
) -> Workload:
    """Set a condition; its time changes only with its status, as in Kubernetes. `changes` are
    further fields of the workload, set in the same copy to save time."""
    before = workload.condition(kind)
    changed_ns = before.changed_ns if before and before.status == status else now_ns
    made = Condition(kind, status, reason, message, changed_ns)
    rest = tuple(one for one in workload.conditions if one.type != kind)
    return replace(workload, conditions=(*rest, made), **changes)


def reserved(workload: Workload, queue: str, now_ns: int, **changes: Any) -> Workload:
    """Set QuotaReserved; see `with_condition` for `changes`."""
    text = f"Quota reserved in ClusterQueue {queue}"
    if workload.checkpointed is not None:
        workload = with_condition(
            workload, CHECKPOINTED, False, RESTORING, TO_BE_RESTORED, now_ns, checkpointed=None
        )
    workload = with_condition(
        workload, QUOTA_RESERVED, True, QUOTA_RESERVED, text, now_ns, **changes
    )
    for kind in (EVICTED, PREEMPTED, REQUEUED, BLOCKED_ON_PREEMPTION_GATES):
        if workload.is_true(kind):
            workload = with_condition(workload, kind, False, QUOTA_RESERVED, text, now_ns)
    return workload


def admitted(workload: Workload, now_ns: int) -> Workload:
    return with_condition(workload, ADMITTED, True, ADMITTED, "The workload is admitted", now_ns)


def awaiting_pods(workload: Workload, all_bound: bool | None, now_ns: int) -> Workload:
    """Return an admitted workload whose pods are not ready yet. `all_bound`: True if all of them
    are on nodes, None if that is not followed. The time is that of the change of the reason, from
    which the next timeout counts."""
    reason = WAIT_FOR_START if all_bound is not False else WAIT_FOR_SCHEDULING
    rest = tuple(one for one in workload.conditions if one.type != PODS_READY)
    made = Condition(PODS_READY, False, reason, "Not all pods are ready or succeeded", now_ns)
    return replace(workload, conditions=(*rest, made))


def evicting(
    workload: Workload,
    reason: str,
    message: str,
    preempted_for: str | None,
    now_ns: int,
    cause: str = "",
    checkpoints: bool = False,
) -> Workload:
    """`checkpoints`: True if its pods are checkpointed instead of stopped."""
    if checkpoints:
        asked = CHECKPOINT_REQUESTED
        workload = with_condition(workload, CHECKPOINTED, False, asked, TO_BE_SAVED, now_ns)
    else:
        workload = not_checkpointed(workload, message, now_ns)
    workload = with_condition(workload, EVICTED, True, reason, message, now_ns)
    if cause:
        rest = (one for one in workload.conditions if one.type != EVICTED)
        evicted = Condition(EVICTED, True, reason, message, now_ns, cause)
        workload = replace(workload, conditions=(*rest, evicted))
    if preempted_for is not None:
        workload = with_condition(workload, PREEMPTED, True, preempted_for, message, now_ns)
    if workload.is_true(BLOCKED_ON_PREEMPTION_GATES):
        workload = with_condition(
            workload, BLOCKED_ON_PREEMPTION_GATES, False, reason, message, now_ns
        )
    return workload


def back_in_line(workload: Workload, reason: str, message: str, now_ns: int) -> Workload:
    """Return an evicted, stopped workload to the queue, without quota. Its run time counts towards
    a maximum execution time; a deactivated workload starts from zero."""
    admitted, ran_s = workload.condition(ADMITTED), 0
    if workload.active and workload.max_execution_s is not None:
        ran_s = workload.past_execution_s
        if admitted is not None and admitted.status:
            ran_s += max(0, now_ns - admitted.changed_ns) // 1_000_000_000
    workload = replace(workload, admission=None, past_execution_s=ran_s)
    for kind in (QUOTA_RESERVED, ADMITTED, PODS_READY):
        if workload.condition(kind) is not None:
            workload = with_condition(workload, kind, False, reason, message, now_ns)
    again = workload.active
    return with_condition(workload, REQUEUED, again, reason, message, now_ns)


def saved(workload: Workload, kept: Admission, now_ns: int) -> Workload:
    """Return a workload without quota whose pods are checkpointed; `kept` is what it keeps."""
    evicted = workload.condition(EVICTED)
    assert evicted is not None
    workload = back_in_line(workload, evicted.reason, evicted.message, now_ns)
    return with_condition(
        workload, CHECKPOINTED, True, CHECKPOINTED, SAVED, now_ns, checkpointed=kept
    )


def restored(workload: Workload, now_ns: int) -> Workload:
    text = "The GPU memory of its pods is on their GPUs again"
    return with_condition(workload, CHECKPOINTED, False, RESTORED, text, now_ns)


def not_checkpointed(workload: Workload, message: str, now_ns: int) -> Workload:
    """Return a workload whose pods have to stop, if they were being checkpointed, were, or were
    being restored. It keeps what it has until they have stopped."""
    if workload.checkpoint_phase not in _UNDER_WAY:
        return workload
    return with_condition(workload, CHECKPOINTED, False, CHECKPOINT_FAILED, message, now_ns)


def on_hold(workload: Workload, text: str, now_ns: int) -> Workload:
    """Return a workload without quota that needs none for now; `text` is the message."""
    workload = replace(workload, admission=None)
    for kind in (ADMITTED, PODS_READY):
        if workload.condition(kind) is not None:
            workload = with_condition(workload, kind, False, ON_HOLD, text, now_ns)
    return with_condition(workload, QUOTA_RESERVED, False, ON_HOLD, text, now_ns)


def off_hold(workload: Workload, now_ns: int) -> Workload:
    reserved = workload.condition(QUOTA_RESERVED)
    replaced = reserved is not None and reserved.message == TO_BE_REPLACED
    text = "Its pods are replaced" if replaced else "It is scaled up again"
    reason = PendingReason.PENDING_EVALUATION
    return with_condition(workload, QUOTA_RESERVED, False, reason, text, now_ns)


def finished(workload: Workload, reason: str, message: str, now_ns: int) -> Workload:
    workload = not_checkpointed(workload, message or reason, now_ns)
    return with_condition(workload, FINISHED, True, reason, message, now_ns, checkpointed=None)


def moved_ns(workload: Workload) -> int:
    """Time of its last move for another workload, as far as its conditions tell it; 0: none. Once
    it has quota again, they tell only that it was preempted: that counts as a move, too."""
    preempted = workload.condition(PREEMPTED)
    if preempted is None or (preempted.status and not workload.is_moving):
        return 0
    return preempted.changed_ns


def phase(workload: Workload, paused: bool = False) -> str:
    """The workload's phase in one word."""
    if workload.is_true(FINISHED):
        return "Finished"
    if workload.admission is not None:
        if workload.is_true(EVICTED):
            return "Evicting"
        if workload.is_true(PODS_READY):
            return "Running"
        return "Admitted" if workload.is_true(ADMITTED) else "QuotaReserved"
    if not workload.active:
        return "Held"
    if paused:
        return "Paused"
    return "Pending"
