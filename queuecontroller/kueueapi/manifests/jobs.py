"""Workloads made from submitted objects: jobs of every kind in the frameworks' table, Pods, and
Deployments and the like, whose pods are queued one by one. Only objects with a queue name are
queued; all others are ignored."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.frameworks.names import PRIORITY_CLASS, QUEUE_NAME
from queuecontroller.frameworks.patches import text_of
from queuecontroller.frameworks.slots import Slot, slots_in
from queuecontroller.frameworks.table import BY_KIND, Framework, Holding, OfRuntime
from queuecontroller.frameworks.workload import max_execution_s, pod_class_of
from queuecontroller.kueueapi.manifests.pods import AS_GIVEN
from queuecontroller.kueueapi.manifests.workloads import pod_set_of
from queuecontroller.scheduler.model.objects import PodSet, Workload
from queuecontroller.scheduler.model.transformations import Transformations
from sluicecommon.reader import ManifestError, Problem, Reader, shown

MAX_COPIES: Final = 100_000
"""Each replica is a workload of its own; so many in one line are measured (docs/queue/queue.md)."""

REPLICATED: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
FRAMEWORKS: Final[Mapping[str, Framework]] = {
    **{
        kind: one
        for kind, one in BY_KIND.items()
        # A TrainJob needs its runtime and a LeaderWorkerSet its pods, which only an API server has.
        if not isinstance(one.pods, OfRuntime) and (one.holding is not Holding.PODS)
    },
    "Deployment": BY_KIND["Deployment"],
    "StatefulSet": BY_KIND["StatefulSet"],
    "ReplicaSet": BY_KIND["Deployment"],
}
"""Frameworks by kind; all other kinds are passed over."""
SUBMITTED: Final = frozenset(FRAMEWORKS)


@dataclass(frozen=True, slots=True)
class Priorities:
    """Values by class name, and of pods that name none."""

    workload_classes: Mapping[str, int]
    pod_classes: Mapping[str, int]
    default: int = 0

    def classes(self, kind: str) -> Mapping[str, int]:
        return self.workload_classes if kind == "WorkloadPriorityClass" else self.pod_classes

    def of(self, workload_class: str | None, pod_class: str | None) -> int:
        """The value of a WorkloadPriorityClass, or else of a PriorityClass; an unknown class counts
        as none."""
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
    """The workloads of one object; empty when it names no queue. Raises ManifestError."""
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
    fw = FRAMEWORKS[kind]
    found = slots_in(fw, reader)
    copies = _copies(kind, reader)
    pod_sets = tuple(_pod_set(one, path, reader, change) for one in found)
    workload_class = labels.get(PRIORITY_CLASS)
    pod_class = pod_class_of(fw, manifest, found) or None
    created_ns = head.time_ns("creationTimestamp") or 0
    namespace, uid = head.text("namespace", "default"), head.text("uid")
    longest_s = max_execution_s(head)
    if reader.problems:
        raise ManifestError(reader.problems)
    names = [f"{name}-{i}" for i in range(copies)] if kind in REPLICATED else [name]
    return [
        Workload(
            namespace=namespace,
            name=f"{kind.lower()}-{one}",
            uid=uid,
            created_ns=created_ns,
            pod_sets=pod_sets,
            queue_name=queue,
            priority=priorities.of(workload_class, pod_class),
            priority_class=workload_class or pod_class,
            max_execution_s=longest_s,
        )
        for one in names
    ]


def missing_class(manifest: Mapping[str, Any], known: Container[str]) -> Problem | None:
    """The problem of a job whose WorkloadPriorityClass does not exist: as in Kueue it is not
    queued, since without a value it would be queued with any priority."""
    name = Reader(manifest).child("metadata").labels("labels").get(PRIORITY_CLASS)
    if not name or name in known:
        return None
    what = f"there is no WorkloadPriorityClass {shown(name)}"
    return Problem(f"metadata.labels.{PRIORITY_CLASS}", what, "create it, or name another")


def copies_of(manifest: Mapping[str, Any]) -> int:
    """Number of workloads of an object, without making them; `workloads_of` reports its errors."""
    reader = Reader(manifest, "")
    if QUEUE_NAME not in reader.child("metadata").labels("labels"):
        return 0
    return _copies(reader.text("kind"), reader)


def _copies(kind: str, reader: Reader) -> int:
    if kind not in REPLICATED:
        return 1
    return reader.child("spec").whole("replicas", 1, least=0, most=MAX_COPIES)


def _pod_set(slot: Slot, path: str, reader: Reader, change: Transformations) -> PodSet:
    at = path
    if not slot.of_template:
        at = f"{path}.pod set {slot.name}" if path else f"pod set {slot.name}"
    elif pod := text_of(slot.places.labels[:-2]):
        at = f"{path}.{pod}" if path else pod
    template = Reader(slot.template, at, reader.problems)
    return pod_set_of(template, slot.name, slot.count, slot.min_count, change)
