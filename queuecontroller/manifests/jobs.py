"""Workloads made of what users submit: Jobs, Pods, and Deployments and the like, whose pods queue
one by one as Kueue's integrations have it.

Only what carries a queue name is queued; the rest is none of our business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.engine.model import PodSet, Workload
from queuecontroller.engine.transformations import Transformations

from .kueue import read_pod_set
from .pods import AS_GIVEN
from .reader import ManifestError, Reader

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"

REPLICATED: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
SUBMITTED: Final = REPLICATED | {"Job", "Pod"}


@dataclass(frozen=True, slots=True)
class Priorities:
    """Values by class name, and of pods that name none."""

    workload_classes: Mapping[str, int]
    pod_classes: Mapping[str, int]
    default: int = 0

    def of(self, workload_class: str | None, pod_class: str | None) -> int:
        """WorkloadPriorityClass decides over PriorityClass; an unknown class counts as none."""
        if workload_class is not None and workload_class in self.workload_classes:
            return self.workload_classes[workload_class]
        if pod_class is not None and pod_class in self.pod_classes:
            return self.pod_classes[pod_class]
        return self.default


NO_PRIORITIES: Final = Priorities({}, {})


def workloads_of(
    manifest: Mapping[str, Any],
    path: str,
    change: Transformations = AS_GIVEN,
    priorities: Priorities = NO_PRIORITIES,
) -> list[Workload]:
    """The workloads one object stands for; none when it names no queue."""
    reader = Reader(manifest, path)
    head = reader.child("metadata")
    labels = head.labels("labels")
    queue = labels.get(QUEUE_NAME)
    kind = reader.text("kind")
    name = head.text("name") or head.text("generateName").rstrip("-")
    if queue is None:
        return []
    spec = reader.child("spec")
    template = manifest if kind == "Pod" else spec.raw("template")
    count, least, copies = _sizes(kind, spec, head)
    pod_set = _pod_set(template, count, least, f"{path}.spec", change)
    pod_spec = Reader(template).child("spec")
    workload_class = labels.get(PRIORITY_CLASS)
    pod_class = pod_spec.optional_text("priorityClassName")
    if reader.problems:
        raise ManifestError(reader.problems)
    names = [f"{name}-{i}" for i in range(copies)] if kind in REPLICATED else [name]
    return [
        Workload(
            namespace=head.text("namespace", "default"),
            name=f"{kind.lower()}-{one}",
            uid=head.text("uid"),
            created_ns=head.time_ns("creationTimestamp") or 0,
            pod_sets=(pod_set,),
            queue_name=queue,
            priority=priorities.of(workload_class, pod_class),
            priority_class=workload_class or pod_class,
        )
        for one in names
    ]


def _sizes(kind: str, spec: Reader, head: Reader) -> tuple[int, int | None, int]:
    """Pods of one workload, the least of them, and how many workloads."""
    if kind in REPLICATED:
        return 1, None, spec.whole("replicas", 1)
    if kind != "Job":
        return 1, None, 1
    count = spec.whole("parallelism", 1)
    if spec.has("completions"):
        count = min(count, spec.whole("completions"))
    least = head.child("annotations").optional_text(MIN_PARALLELISM)
    return count, int(least) if least is not None and least.isdigit() else None, 1


def _pod_set(
    template: object, count: int, least: int | None, path: str, change: Transformations
) -> PodSet:
    given = {"name": "main", "count": count, "template": template}
    if least is not None:
        given["minCount"] = least
    reader = Reader(given, path)
    pod_set = read_pod_set(reader, change)
    if reader.problems:
        raise ManifestError(reader.problems)
    return pod_set
