"""Workloads made of what users submit: Jobs, Pods, and Deployments and the like, whose pods queue
one by one as Kueue's integrations have it.

Only what carries a queue name is queued; the rest is none of our business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.engine.model import Workload
from queuecontroller.engine.transformations import Transformations

from .pods import AS_GIVEN
from .reader import ManifestError, Reader, shown
from .workloads import pod_set_of

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"

MOST_COPIES: Final = 100_000
"""Each replica is a workload of its own; so many in one line are measured (docs/queue.md)."""

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
    """The workloads one object stands for; none when it names no queue. Raises ManifestError."""
    reader = Reader(manifest, path)
    head = reader.child("metadata")
    labels = head.labels("labels")
    queue = labels.get(QUEUE_NAME)
    kind = reader.text("kind")
    name = head.text("name") or head.text("generateName").rstrip("-")
    if queue is None:
        if reader.problems:
            raise ManifestError(reader.problems)
        return []
    if not name:
        head.problem("name", "is required", "add it")
    spec = reader.child("spec")
    pod = reader if kind == "Pod" else spec.child("template")
    count, least, copies = _sizes(kind, spec, head)
    pod_set = pod_set_of(pod, "main", count, least, change)
    workload_class = labels.get(PRIORITY_CLASS)
    pod_class = pod.child("spec").optional_text("priorityClassName")
    created_ns = head.time_ns("creationTimestamp") or 0
    namespace, uid = head.text("namespace", "default"), head.text("uid")
    if reader.problems:
        raise ManifestError(reader.problems)
    names = [f"{name}-{i}" for i in range(copies)] if kind in REPLICATED else [name]
    return [
        Workload(
            namespace=namespace,
            name=f"{kind.lower()}-{one}",
            uid=uid,
            created_ns=created_ns,
            pod_sets=(pod_set,),
            queue_name=queue,
            priority=priorities.of(workload_class, pod_class),
            priority_class=workload_class or pod_class,
        )
        for one in names
    ]


def copies_of(manifest: Mapping[str, Any]) -> int:
    """How many workloads an object stands for, without making them; mistakes in it are
    `workloads_of`'s to tell."""
    reader = Reader(manifest, "")
    head = reader.child("metadata")
    if QUEUE_NAME not in head.labels("labels"):
        return 0
    return _sizes(reader.text("kind"), reader.child("spec"), head)[2]


def _sizes(kind: str, spec: Reader, head: Reader) -> tuple[int, int | None, int]:
    """Pods of one workload, the least of them, and how many workloads."""
    if kind in REPLICATED:
        return 1, None, spec.whole("replicas", 1, least=0, most=MOST_COPIES)
    if kind != "Job":
        return 1, None, 1
    count = spec.whole("parallelism", 1, least=0)
    if spec.has("completions"):
        count = min(count, spec.whole("completions", 1, least=0))
    annotations = head.child("annotations")
    least = annotations.optional_text(MIN_PARALLELISM)
    if least is None:
        return count, None, 1
    if not (least.isascii() and least.isdigit() and 1 <= int(least[:10]) <= max(1, count)):
        what = f"{shown(least)} is no whole number from 1 to parallelism ({count})"
        annotations.problem(MIN_PARALLELISM, what, "write one that is, in quotes")
        return count, None, 1
    return count, int(least), 1
