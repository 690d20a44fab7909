"""State of a job by its status: finished, active, ready, its reclaimable pods, and the pods of the
RayClusters that it made."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from queuecontroller.frameworks.patches import ABSENT, Document, Path, at
from queuecontroller.frameworks.slots import Runtime, slots
from queuecontroller.frameworks.table import (
    AllExecutors,
    AllJobs,
    AllPods,
    Counts,
    Denies,
    Either,
    Framework,
    Holds,
    Is,
    OfRuntime,
    OneTemplate,
    ReplicatedJobs,
    Test,
    framework_named,
)
from queuecontroller.scheduler.model.reasons import FAILED, SUCCEEDED

RAY_CLUSTER: Final = framework_named("ray.io/raycluster")
_LONGEST_MESSAGE: Final = 32_768
"""Kubernetes' limit for a condition's message."""


@dataclass(frozen=True, slots=True)
class Finished:
    success: bool
    reason: str
    """Reason of the Workload's condition Finished."""
    message: str


def finished(fw: Framework, document: Document) -> Finished | None:
    """The result of a job that has ended; None: it may still run."""
    for test, success in ((fw.succeeded, True), (fw.failed, False)):
        if test is None or not _passes(test, document):
            continue
        if not success and fw.not_yet_failed and _passes(fw.not_yet_failed, document):
            return None
        return Finished(success, SUCCEEDED if success else FAILED, _message(fw, test, document))
    return None


def _message(fw: Framework, test: Test, document: Document) -> str:
    text = at(document, fw.message) if fw.message else ABSENT
    if isinstance(test, Holds):
        for one in _conditions(document):
            if one.get("type") in test.conditions and one.get("status") == "True":
                text = one.get("message")
    if not isinstance(text, str) or not text:
        text = f"{fw.kind} finished {'successfully' if test is fw.succeeded else 'unsuccessfully'}"
    return text[:_LONGEST_MESSAGE]


def is_active(fw: Framework, document: Document) -> bool:
    """True if it has pods, by its status. A suspended job holds its quota until it has none."""
    return fw.active is not None and _passes(fw.active, document)


def pods_ready(fw: Framework, document: Document, runtime: Runtime = None) -> bool:
    """True if its pods are ready. Raises ManifestError where that depends on unreadable pod
    templates."""
    match fw.ready:
        case None:
            return False
        case AllPods():
            wanted = sum(one.count for one in slots(fw, document))
            status = at(document, ("status",))
            return _number(status, "succeeded") + _number(status, "ready") >= wanted
        case AllJobs(path):
            done = sum(
                _number(one, "ready") + _number(one, "succeeded")
                for one in _entries(at(document, path))
            )
            return done >= sum(_replicas(fw, document, runtime).values())
        case AllExecutors():
            if at(document, ("status", "applicationState", "state")) != "RUNNING":
                return False
            states = at(document, ("status", "executorState"))
            values = states.values() if isinstance(states, Mapping) else ()
            up = sum(one in ("RUNNING", "COMPLETED") for one in values if isinstance(one, str))
            return up >= _fewest_executors(document, slots(fw, document)[1].count)
        case Is() | Holds() | Denies() | Either() | Counts():
            return _passes(fw.ready, document)
        case _:
            assert_never(fw.ready)


def reclaimable(fw: Framework, document: Document, runtime: Runtime = None) -> dict[str, int]:
    """Number of finished pods by pod set that will not be recreated: their quota is free. Raises
    ManifestError."""
    match fw.pods:
        case OneTemplate(job):
            spec, status = at(document, job), at(document, ("status",))
            (slot,) = slots(fw, document)
            parallelism = _number(spec, "parallelism", 1)
            done = _number(status, "succeeded") + _failed_indexes(status)
            left = _number(spec, "completions", parallelism) - done
            if parallelism <= 1 or not done or left >= slot.count:
                return {}
            return {slot.name: slot.count - max(0, left)}
        case ReplicatedJobs() | OfRuntime():
            assert isinstance(fw.ready, AllJobs)
            replicas = _replicas(fw, document, runtime)
            pods = {one.name: one.count for one in slots(fw, document, runtime)}
            free = {}
            for one in _entries(at(document, fw.ready.at)):
                name, done = one.get("name"), _number(one, "succeeded")
                if isinstance(name, str) and 0 < done <= replicas.get(name, 0):
                    free[name] = done * pods[name] // replicas[name]
            return free
        case _:
            return {}


def _fewest_executors(document: Document, instances: int) -> int:
    """Executors with which a Spark application works: with dynamic allocation it may go down to its
    smallest number at any time."""
    dynamic = at(document, ("spec", "dynamicAllocation"))
    if at(dynamic, ("enabled",)) is not True:
        return instances
    return _number(dynamic, "minExecutors", 0)


def _failed_indexes(status: Any) -> int:
    """Number of indexes of an Indexed Job that failed for good, such as 4 of "1,3-5"."""
    found = at(status, ("failedIndexes",))
    count = 0
    for part in found.split(",") if isinstance(found, str) and found else ():
        first, _, last = part.partition("-")
        if first.isascii() and first.isdigit() and (not last or last.isdigit()):
            count += max(0, int((last or first)[:10]) - int(first[:10]) + 1)
    return count


def _replicas(fw: Framework, document: Document, runtime: Runtime) -> dict[str, int]:
    """Replicas of each replicated job of a JobSet."""
    path: Path = ("spec", "replicatedJobs")
    found: Any = document
    if isinstance(fw.pods, OfRuntime):
        found, path = runtime, ("spec", "template", *path)
    elif isinstance(fw.pods, ReplicatedJobs):
        path = fw.pods.at
    jobs = _entries(at(found, path))
    return {str(one.get("name")): _number(one, "replicas", 1) for one in jobs}


def _passes(test: Test, document: Document) -> bool:
    match test:
        case Is(path, values):
            return at(document, path) in values
        case Holds(conditions) | Denies(conditions):
            wanted = "True" if isinstance(test, Holds) else "False"
            return any(
                one.get("type") in conditions and one.get("status") == wanted
                for one in _conditions(document)
            )
        case Either(tests):
            return any(_passes(one, document) for one in tests)
        case Counts(path, names, each):
            found = at(document, path)
            counted = _entries(found) if each else iter((found,))
            return any(_number(one, name) > 0 for one in counted for name in names)
        case AllPods() | AllJobs() | AllExecutors():
            return False
        case _:
            assert_never(test)


def _conditions(document: Document) -> Iterator[Mapping[str, Any]]:
    found = at(document, ("status", "conditions"))
    return _entries(found) if isinstance(found, list) else iter(())


def _entries(found: object) -> Iterator[Mapping[str, Any]]:
    """Mappings in a list or in a mapping's values."""
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, list):
        yield from (one for one in found if isinstance(one, Mapping))


def _number(holder: object, name: str, default: int = 0) -> int:
    found = at(holder, (name,))
    return found if type(found) is int and 0 <= found < 1 << 31 else default


# -- RayClusters that an elastic RayJob or RayService made ----------------------------------------


def counts_made(clusters: Sequence[Document], names: Container[str]) -> dict[str, int]:
    """Number of pods that the clusters have together, by pod set with one of these names: its head
    and each of its groups. Raises ManifestError."""
    assert RAY_CLUSTER is not None
    found: dict[str, int] = {}
    for cluster in clusters:
        for one in slots(RAY_CLUSTER, cluster):
            if one.name in names:
                found[one.name] = found.get(one.name, 0) + one.count
    return found


def clusters_made(clusters: Sequence[Document]) -> str:
    """A text that is another one when a cluster is resized, created or deleted."""
    known = ((at(one, ("metadata", key)) for key in ("name", "generation")) for one in clusters)
    return "".join(sorted(f"_{name}.{generation}" for name, generation in known))
