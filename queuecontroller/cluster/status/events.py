"""Kubernetes events, as `kubectl describe` shows them, with Kueue's reasons and messages.

Each costs the API server a write, so events that only repeat an object's conditions are recorded
only if all of Kueue's are configured. An event is recorded after the change that it is about is
stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    controller_of,
    has_condition,
)
from queuecontroller.scheduler.model import reasons
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    DEACTIVATED_FOR,
    EVICTED,
    EVICTED_DUE_TO,
    PREEMPTED,
    PREEMPTED_WORKLOAD,
    QUOTA_RESERVED,
    EvictionReason,
)

LONGEST: Final = 1024
COMPONENT: Final = "sluice-queue"
_GATED: Final = reasons.PendingReason.ADMISSION_GATED


@dataclass(frozen=True, slots=True)
class KubernetesEvent:
    reason: str
    message: str
    warning: bool = False
    detail: bool = False
    """True for an event of Kueue's that only repeats the object's conditions."""


def of_workload(before: Document, after: Document) -> Iterator[KubernetesEvent]:
    """Yield the events of one write of a Workload's status."""

    def became(kind: str) -> bool:
        return has_condition(after, kind) and not has_condition(before, kind)

    queue = ((after.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
    # The job gets the event that it was started, which is what users read.
    of_a_job, admitted = bool(controller_of(after)), became(ADMITTED)
    if became(QUOTA_RESERVED):
        text = f"Quota reserved in ClusterQueue {queue}"
        yield KubernetesEvent(QUOTA_RESERVED, text, detail=of_a_job or admitted)
    if admitted:
        yield KubernetesEvent(ADMITTED, f"Admitted by ClusterQueue {queue}", detail=of_a_job)
    if became(EVICTED):
        yield from _of_eviction(after)
    if became(PREEMPTED):
        yield KubernetesEvent(PREEMPTED, str(condition_of(after, PREEMPTED).get("message", "")))
    waits, waited = (condition_of(one, QUOTA_RESERVED) for one in (after, before))
    yield from _of_gates(waits, waited)
    if (
        waits.get("reason") != _GATED
        and waits.get("status") == "False"
        and _said(waits) != _said(waited)
    ):
        yield KubernetesEvent(*_said(waits), warning=True, detail=True)


def _said(condition: Mapping[str, Any]) -> tuple[str, str]:
    return str(condition.get("reason") or "Pending"), str(condition.get("message") or "")


def _of_gates(waits: Mapping[str, Any], waited: Mapping[str, Any]) -> Iterator[KubernetesEvent]:
    gated, was_gated = (one.get("reason") == _GATED for one in (waits, waited))
    if gated and not was_gated:
        message = str(waits.get("message") or "")
        yield KubernetesEvent(_GATED, f"Workload a{message[1:]}")
    if was_gated and not gated:
        text = "Admission gate cleared, workload is now admissible"
        yield KubernetesEvent(reasons.ADMISSION_GATE_CLEARED, text)


def _of_eviction(after: Document) -> Iterator[KubernetesEvent]:
    evicted = condition_of(after, EVICTED)
    reason, message = str(evicted.get("reason") or ""), str(evicted.get("message") or "")
    match reason.removeprefix(DEACTIVATED_FOR):
        case reasons.MAXIMUM_EXECUTION_TIME_EXCEEDED as why:
            longest_s = (after.get("spec") or {}).get("maximumExecutionTimeSeconds")
            text = f"The maximum execution time ({longest_s}s) exceeded"
            yield KubernetesEvent(why, text, warning=True)
        case EvictionReason.ADMISSION_CHECK if reason.startswith(DEACTIVATED_FOR):
            yield KubernetesEvent(
                reasons.CHECK_REJECTED, f"Deactivated due to {message}", warning=True
            )
    yield KubernetesEvent(f"{EVICTED_DUE_TO}{reason}", message)


def of_preemptor(target: Document) -> KubernetesEvent:
    """Return the event recorded on the preemptor."""
    head = target["metadata"]
    queue = ((target.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
    name = f"{head.get('namespace')}/{head['name']}"
    where = f" in ClusterQueue {queue}" if queue else ""
    return KubernetesEvent(
        PREEMPTED_WORKLOAD, f"Preempted workload {name} (UID: {head.get('uid')}){where}"
    )


def event_of(
    about: Document, api_version: str, kind: str, recorded: KubernetesEvent, now: str, name: str
) -> dict[str, Any]:
    """Return the Event object. `now` is in RFC 3339; `name` makes its name unique."""
    head: Mapping[str, Any] = about["metadata"]
    namespace = head.get("namespace") or "default"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{head['name'][:200]}.{name}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": api_version,
            "kind": kind,
            "name": head["name"],
            "namespace": head.get("namespace") or "",
            "uid": head.get("uid") or "",
            "resourceVersion": head.get("resourceVersion") or "",
        },
        "reason": recorded.reason,
        "message": recorded.message[:LONGEST],
        "type": "Warning" if recorded.warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
