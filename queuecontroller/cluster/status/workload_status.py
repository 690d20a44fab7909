"""Merge patch of a Workload's status from the book: only what differs, empty if nothing does.

A merge patch replaces whole lists, so the patch keeps the entries of other writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document
from queuecontroller.scheduler.lifecycle import reason_and_cause
from queuecontroller.scheduler.model.objects import (
    Admission,
    Condition,
    RequeueState,
    TopologyAssignment,
    Workload,
)
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    BLOCKED_ON_PREEMPTION_GATES,
    CHECKPOINTED,
    DEVICES_RESOLVED,
    DEVICES_UNRESOLVED,
    EVICTED,
    FINISHED,
    NO_RESERVATION,
    PODS_READY,
    PREEMPTED,
    PREEMPTION_GATED,
    QUOTA_RESERVED,
    REQUEUED,
    WAITING_FOR_PODS,
    PendingReason,
)
from queuecontroller.scheduler.placement.topology.slices import slices_of
from queuecontroller.state.workloads.conditions import with_condition
from sluicecommon.kubernetes.quantity import format_amount

OURS: Final = (
    *(QUOTA_RESERVED, ADMITTED, PODS_READY, FINISHED, EVICTED, PREEMPTED, REQUEUED),
    *(WAITING_FOR_PODS, BLOCKED_ON_PREEMPTION_GATES, CHECKPOINTED),
)
"""Conditions that no other writer changes, except Finished of an external framework's job."""
LONGEST: Final = 1024
"""Longest message in characters, as in Kueue."""
UNANSWERED: Final = "The check has not answered yet"


def stamp(at_ns: int) -> str:
    """Format a time to the second, as Kubernetes does."""
    moment = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def pending(reason: str, message: str, now_ns: int) -> Condition:
    return Condition(QUOTA_RESERVED, False, reason, message, now_ns)


def unresolved(message: str, now_ns: int) -> Condition:
    """Return the condition Requeued of a Workload whose pods' devices cannot be counted."""
    return Condition(REQUEUED, False, DEVICES_UNRESOLVED, message, now_ns)


def resolved(workload: Workload, now_ns: int) -> Workload:
    """Return a Workload as it is shown: queued again, if its pods' devices could not be counted."""
    again = workload.condition(REQUEUED)
    if again is None or again.reason != DEVICES_UNRESOLVED:
        return workload
    text = "The devices of its pods are counted"
    return with_condition(workload, REQUEUED, True, DEVICES_RESOLVED, text, now_ns)


def patch_of(
    document: Document,
    seen: Workload,
    workload: Workload,
    waits: Condition | None,
    now_ns: int,
) -> dict[str, Any]:
    """Return the patch of a status; empty if nothing changes.

    `seen` is the document as it was read, `waits` the condition of a pending workload.
    """
    status = document.get("status") or {}
    found: dict[str, Any] = {}
    if workload.admission != seen.admission:
        found["admission"] = _admission(workload.admission)
    if workload.checkpointed != seen.checkpointed:
        found["checkpointed"] = _admission(workload.checkpointed)
    conditions = _conditions(document, workload, waits)
    if conditions is not None:
        found["conditions"] = conditions
    if (requeue := _requeue(workload.requeue_state)) != _requeue(seen.requeue_state):
        found["requeueState"] = requeue
    if workload.admission_checks != seen.admission_checks:
        found["admissionChecks"] = _checks(status, workload, now_ns)
    if workload.past_execution_s != seen.past_execution_s:
        found["accumulatedPastExecutionTimeSeconds"] = workload.past_execution_s or None
    if conditions is not None and workload.is_true(EVICTED) and not seen.is_true(EVICTED):
        found["schedulingStats"] = _stats(status, workload)
        if gates := status.get("preemptionGates"):
            found["preemptionGates"] = [_closed_gate(str(one["name"]), now_ns) for one in gates]
    if dict(workload.reclaimable_pods) != dict(seen.reclaimable_pods):
        found["reclaimablePods"] = [
            {"name": name, "count": count} for name, count in workload.reclaimable_pods.items()
        ]
    return found


def _conditions(
    document: Document, workload: Workload, waits: Condition | None
) -> list[dict[str, Any]] | None:
    """Return the conditions to write; None if they stay."""
    before = (document.get("status") or {}).get("conditions") or ()
    made: dict[str, dict[str, Any]] = {one["type"]: dict(one) for one in before}
    wanted = {one.type: one for one in workload.conditions if one.type in OURS}
    if waits is not None:
        wanted[QUOTA_RESERVED] = waits
        if _is_blocked(workload, waits):
            wanted[BLOCKED_ON_PREEMPTION_GATES] = replace(
                waits, type=BLOCKED_ON_PREEMPTION_GATES, status=True, reason=PREEMPTION_GATED
            )
    reserved = wanted.get(QUOTA_RESERVED)
    admitted = wanted.get(ADMITTED)
    if admitted is not None and not admitted.status and reserved and not reserved.status:
        text = "The workload has no reservation"
        wanted[ADMITTED] = Condition(ADMITTED, False, NO_RESERVATION, text, admitted.changed_ns)
    changed = False
    generation = document["metadata"].get("generation")
    for kind, one in wanted.items():
        known = made.get(kind)
        shown = _condition(one, known, generation)
        if shown is not None:
            made[kind] = shown
            changed = True
    return list(made.values()) if changed else None


def _is_blocked(workload: Workload, waits: Condition) -> bool:
    """True if it waits for a preemption gate. Admission that is gated has the same reason."""
    gated = waits.reason == PendingReason.ADMISSION_GATED and not workload.is_gated
    return gated and bool(workload.preemption_gates)


def _closed_gate(name: str, now_ns: int) -> dict[str, Any]:
    return {"name": name, "position": "Closed", "lastTransitionTime": stamp(now_ns)}


def _condition(
    one: Condition, known: Mapping[str, Any] | None, generation: int | None
) -> dict[str, Any] | None:
    status = "True" if one.status else "False"
    message = one.message[:LONGEST]
    reason = one.reason or one.type
    shown = {"type": one.type, "status": status, "reason": reason, "message": message}
    since = stamp(one.changed_ns)
    if known is not None and known.get("status") == status:
        if all(known.get(name) == value for name, value in shown.items()):
            return None
        since = str(known.get("lastTransitionTime") or since)
    shown["lastTransitionTime"] = since
    return {**shown, "observedGeneration": generation} if generation is not None else shown


def _admission(given: Admission | None) -> dict[str, Any] | None:
    if given is None:
        return None
    return {
        "clusterQueue": given.cluster_queue,
        "podSetAssignments": [
            {
                "name": one.name,
                "count": one.count,
                "flavors": dict(one.flavors),
                "resourceUsage": {name: format_amount(name, n) for name, n in one.usage.items()},
                **({"topologyAssignment": _topology(one.topology)} if one.topology else {}),
                **(
                    {
                        "gpuPlaces": [
                            {"place": each.place, "count": each.count} for each in one.places
                        ]
                    }
                    if one.places
                    else {}
                ),
            }
            for one in given.pod_sets
        ],
    }


def _topology(given: TopologyAssignment) -> dict[str, Any]:
    domains = [{"values": list(values), "count": count} for values, count in given.domains]
    return {"levels": list(given.levels), "slices": slices_of(domains)}


def _stats(status: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Return the scheduling statistics with one more eviction."""
    evicted = workload.condition(EVICTED)
    reason, cause = reason_and_cause(evicted) if evicted is not None else ("", "")
    key = {"reason": reason, "underlyingCause": cause}
    known = (status.get("schedulingStats") or {}).get("evictions") or ()
    rest = [one for one in known if {name: one.get(name) for name in key} != key]
    before = sum(one.get("count", 0) for one in known if one not in rest)
    return {"evictions": [*rest, {**key, "count": before + 1}]}


def _requeue(state: RequeueState) -> dict[str, Any] | None:
    if state == RequeueState():
        return None
    again_ns = state.requeue_at_ns
    return {"count": state.count, "requeueAt": stamp(again_ns) if again_ns is not None else None}


def _checks(status: Mapping[str, Any], workload: Workload, now_ns: int) -> list[dict[str, Any]]:
    known: Mapping[str, Mapping[str, Any]]
    known = {one["name"]: one for one in status.get("admissionChecks") or ()}
    made: list[dict[str, Any]] = []
    for one in workload.admission_checks:
        before = known.get(one.name)
        if before is not None and before.get("state") == str(one.state):
            made.append(dict(before))
            continue
        shown: dict[str, Any] = {
            "name": one.name,
            "state": str(one.state),
            "message": one.message or UNANSWERED,
            "lastTransitionTime": stamp(now_ns),
        }
        if before is not None and before.get("state") == "Retry":  # Counted for its back-off.
            shown["retryCount"] = (before.get("retryCount") or 0) + 1
        made.append(shown)
    return made


def holds(workload: Workload) -> bool:
    return workload.admission is not None and not workload.is_true(FINISHED)


def pods_with_quota(workload: Workload) -> dict[str, int]:
    """Return the number of pods by pod set that hold quota: those that have ended do not."""
    if workload.admission is None or workload.is_true(FINISHED):
        return {}
    ended = workload.reclaimable_pods
    return {one.name: one.count - ended.get(one.name, 0) for one in workload.admission.pod_sets}
