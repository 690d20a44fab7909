"""Events for people: what `kubectl describe` shows at the end, with Kueue's reasons and words.

Each costs the API server a write, so there is one where something became of an object; those that
say what its conditions say anyway are told to who asks for all of Kueue's. They are told after what
they tell of is stored.
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
from queuecontroller.scheduler.lifecycle import DEACTIVATED_FOR

LONGEST: Final = 1024
COMPONENT: Final = "sluice-queue"


@dataclass(frozen=True, slots=True)
class KubernetesEvent:
    reason: str
    message: str
    warning: bool = False
    detail: bool = False
    """Kueue tells it, too, and the object's conditions say as much."""


def of_workload(before: Document, after: Document) -> Iterator[KubernetesEvent]:
    """What became of a Workload with one write of ours."""

    def became(kind: str) -> bool:
        return has_condition(after, kind) and not has_condition(before, kind)

    queue = ((after.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
    # Its job is told that it was started, which is what people look at.
    of_a_job, admitted = bool(controller_of(after)), became("Admitted")
    if became("QuotaReserved"):
        text = f"Quota reserved in ClusterQueue {queue}"
        yield KubernetesEvent("QuotaReserved", text, detail=of_a_job or admitted)
    if admitted:
        yield KubernetesEvent("Admitted", f"Admitted by ClusterQueue {queue}", detail=of_a_job)
    if became("Evicted"):
        yield from _of_eviction(after)
    if became("Preempted"):
        yield KubernetesEvent("Preempted", str(condition_of(after, "Preempted").get("message", "")))
    waits, waited = (condition_of(one, "QuotaReserved") for one in (after, before))
    if waits.get("status") == "False" and _said(waits) != _said(waited):
        yield KubernetesEvent(*_said(waits), warning=True, detail=True)


def _said(condition: Mapping[str, Any]) -> tuple[str, str]:
    return str(condition.get("reason") or "Pending"), str(condition.get("message") or "")


def _of_eviction(after: Document) -> Iterator[KubernetesEvent]:
    evicted = condition_of(after, "Evicted")
    reason, message = str(evicted.get("reason") or ""), str(evicted.get("message") or "")
    match reason.removeprefix(DEACTIVATED_FOR):
        case "MaximumExecutionTimeExceeded" as why:
            longest_s = (after.get("spec") or {}).get("maximumExecutionTimeSeconds")
            text = f"The maximum execution time ({longest_s}s) exceeded"
            yield KubernetesEvent(why, text, warning=True)
        case "AdmissionCheck" if reason.startswith(DEACTIVATED_FOR):
            yield KubernetesEvent(
                "AdmissionCheckRejected", f"Deactivated due to {message}", warning=True
            )
    yield KubernetesEvent(f"EvictedDueTo{reason}", message)


def of_preemptor(target: Document) -> KubernetesEvent:
    """What who preempted it is told."""
    head = target["metadata"]
    queue = ((target.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
    name = f"{head.get('namespace')}/{head['name']}"
    where = f" in ClusterQueue {queue}" if queue else ""
    return KubernetesEvent(
        "PreemptedWorkload", f"Preempted workload {name} (UID: {head.get('uid')}){where}"
    )


def event_of(
    about: Document, api_version: str, kind: str, told: KubernetesEvent, now: str, name: str
) -> dict[str, Any]:
    """`now` in RFC 3339; `name` makes it one of a kind."""
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
        "reason": told.reason,
        "message": told.message[:LONGEST],
        "type": "Warning" if told.warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
