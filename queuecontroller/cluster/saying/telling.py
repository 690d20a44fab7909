"""Events for people: what `kubectl describe` shows at the end, with Kueue's reasons and words.

Each costs the API server a write, so there is one where something became of an object, and none
for what its conditions say anyway. They are told after what they tell of is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.known.world import Document, condition_of, controller_of, has_condition

LONGEST: Final = 1024
COMPONENT: Final = "sluice-queue"


@dataclass(frozen=True, slots=True)
class Told:
    reason: str
    message: str
    warning: bool = False


def of_workload(before: Document, after: Document) -> Iterator[Told]:
    """What became of a Workload with one write of ours."""

    def became(kind: str) -> bool:
        return has_condition(after, kind) and not has_condition(before, kind)

    queue = ((after.get("status") or {}).get("admission") or {}).get("clusterQueue", "")
    if controller_of(after):
        pass  # its job is told that it was started, which is what people look at
    elif became("Admitted"):
        yield Told("Admitted", f"Admitted by ClusterQueue {queue}")
    elif became("QuotaReserved"):
        yield Told("QuotaReserved", f"Quota reserved in ClusterQueue {queue}")
    if became("Evicted"):
        evicted = condition_of(after, "Evicted")
        yield Told(f"EvictedDueTo{evicted.get('reason', '')}", str(evicted.get("message", "")))
    if became("Preempted"):
        yield Told("Preempted", str(condition_of(after, "Preempted").get("message", "")))


def event_of(
    about: Document, api_version: str, kind: str, told: Told, now: str, name: str
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
