"""Catalogue of applied objects: parsed, validated, stored as given, and passed to the scheduler.

An object is stored as its JSON, so that a newer controller parses it again in full. A malformed
object is refused as a whole, with all errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from queuecontroller.kueueapi.manifests.configuration import Configuration, read_configuration
from queuecontroller.kueueapi.manifests.documents import KUEUE_VERSIONS
from queuecontroller.kueueapi.manifests.jobs import SUBMITTED, Priorities
from queuecontroller.kueueapi.manifests.kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_limit_range,
    read_local_queue,
    read_topology_levels,
)
from queuecontroller.kueueapi.manifests.sources import CLUSTER_WIDE
from queuecontroller.scheduler.model.limit_range import LimitRange
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    StopPolicy,
)
from queuecontroller.scheduler.model.transformations import Transformations
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.totals import followed
from queuecontroller.scheduler.scheduler import Scheduler
from queuecontroller.state.records import Consolidation, ObjectId, ObjectRecord, OnPreemption
from sluicecommon.reader import ManifestError, Problem, Reader

ON_PREEMPTION: Final = "sluice.dev/on-preemption"
"""Annotation of a ClusterQueue, a Job or a Workload: `stop` or `pause`."""
CONSOLIDATION: Final = "sluice.dev/consolidation"
"""Annotation of a ClusterQueue, a Job or a Workload: `never` or `restart`."""
USERS: Final = "sluice.dev/users"
"""Annotation of a LocalQueue: the users that may submit through `sluice run`, separated by
commas."""

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
MAX_KNOWN: Final = 10_000
"""Cached results; the keys come from users."""
NAMESPACED: Final = ("LocalQueue", "LimitRange")
OBJECT_KINDS: Final = CLUSTER_WIDE + NAMESPACED
WORKLOAD_KINDS: Final = frozenset({"Workload"}) | SUBMITTED


_DEFAULT: Final = Configuration()
"""One object, since what was read under it is read again under another."""


@dataclass(frozen=True, slots=True)
class Identity:
    kind: str
    namespace: str
    name: str

    @property
    def id(self) -> ObjectId:
        return (self.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return "/".join(part for part in self.id if part)


def identify(document: Mapping[str, Any]) -> Identity:
    """Kind, namespace and name of a document. Raises ManifestError if they are missing."""
    kind = document.get("kind")
    if not isinstance(kind, str) or not kind:
        raise ManifestError([Problem("kind", "is required")])
    reader = Reader(document, kind)
    head = reader.child("metadata")
    name = head.text("name") or head.text("generateName").rstrip("-")
    if not name and kind == "Configuration":
        name = "configuration"
    if not name:
        head.problem("name", "is required")
    namespace = "" if kind in CLUSTER_WIDE else head.text("namespace", "default")
    if reader.problems:
        raise ManifestError(reader.problems)
    _check_version(document, Identity(kind, namespace, name))
    return Identity(kind, namespace, name)


def _check_version(document: Mapping[str, Any], who: Identity) -> None:
    group, _, version = str(document.get("apiVersion", "")).rpartition("/")
    if group == "kueue.x-k8s.io" and version not in KUEUE_VERSIONS:
        known = ", ".join(sorted(KUEUE_VERSIONS))
        message = f"unknown version {version} (known: {known})"
        raise ManifestError([Problem(f"{who}.apiVersion", message)])


@dataclass(frozen=True, slots=True)
class _Class:
    value: int
    default: bool = False


class Catalogue:
    def __init__(self) -> None:
        self.records: dict[ObjectId, ObjectRecord] = {}
        self._parsed: dict[ObjectId, Any] = {}
        self._known: dict[Any, Any] = {}
        """Cached results until an object changes: each submission needs several."""
        self.version = 0
        """Counter that changes whenever an object is stored or deleted."""

    # -- parsing ----------------------------------------------------------------------------------

    def read(self, document: Mapping[str, Any]) -> tuple[Identity, Any]:
        """The object as the scheduler's value. Raises ManifestError."""
        who = identify(document)
        return who, _READERS[who.kind](document, str(who))

    # -- changing ---------------------------------------------------------------------------------

    def put(self, record: ObjectRecord, engine: Scheduler) -> bool:
        """Store an object; False if it is unchanged. Call `engine.settle` after the
        last one. Raises ManifestError."""
        identity = (record.kind, record.namespace, record.name)
        before = self.records.get(identity)
        if before is not None and before.body == record.body:
            return False
        _, parsed = self.read(json.loads(record.body))
        pauses = self.annotation(identity, ON_PREEMPTION)
        self.records[identity] = record
        self._parsed[identity] = parsed
        self._known.clear()
        self.version += 1
        self._feed(record.kind, record.namespace, record.name, parsed, engine)
        if record.kind == "ClusterQueue" and self.annotation(identity, ON_PREEMPTION) != pauses:
            engine.cache.touch(record.name)  # Preempted memory may become free.
        return True

    def drop(self, identity: ObjectId, engine: Scheduler) -> ObjectRecord:
        kind, namespace, name = identity
        record = self.records.pop(identity)
        del self._parsed[identity]
        self._known.clear()
        self.version += 1
        if kind == "ResourceFlavor":
            engine.cache.drop_flavor(name)
        elif kind == "Topology":
            engine.cache.drop_topology(name)
        elif kind == "ClusterQueue":
            engine.cache.drop_cluster_queue(name)
        elif kind == "Cohort":
            engine.cache.drop_cohort(name)
        elif kind == "LocalQueue":
            engine.drop_local_queue(f"{namespace}/{name}")
        elif kind == "Namespace":
            engine.put_namespace(name, {})
        elif kind == "LimitRange":
            engine.put_limit_ranges(namespace, self.limits(namespace))
        return record

    def _feed(self, kind: str, namespace: str, name: str, parsed: Any, engine: Scheduler) -> None:
        if kind == "ResourceFlavor":
            engine.cache.put_flavor(parsed)
        elif kind == "Topology":
            engine.cache.put_topology(name, parsed)
        elif kind == "Cohort":
            engine.cache.put_cohort(parsed)
        elif kind == "ClusterQueue":
            engine.cache.put_cluster_queue(parsed)
        elif kind == "LocalQueue":
            engine.put_local_queue(parsed)
        elif kind == "LimitRange":
            engine.put_limit_ranges(namespace, self.limits(namespace))
        elif kind == "Namespace":
            engine.put_namespace(name, parsed)

    def limits(self, namespace: str) -> list[LimitRange]:
        """The LimitRanges of a namespace."""

        def make() -> list[LimitRange]:
            return [
                parsed
                for (kind, where, _), parsed in self._parsed.items()
                if kind == "LimitRange" and where == namespace
            ]

        return self.remember(("limits", namespace), make)

    def follow(self, nodes: Sequence[NodeCapacity], engine: Scheduler) -> bool:
        """Set every `nominalQuota: auto` to these nodes' reports; True if one changed. Then call
        `engine.settle`."""
        changed = False
        labels = {
            name: one.node_labels
            for (kind, _, name), one in self._parsed.items()
            if kind == "ResourceFlavor"
        }
        for identity, parsed in self._parsed.items():
            kind, namespace, name = identity
            if kind not in ("ClusterQueue", "Cohort"):
                continue
            groups = tuple(followed(group, nodes, labels) for group in parsed.resource_groups)
            if groups == parsed.resource_groups:
                continue
            self._parsed[identity] = replace(parsed, resource_groups=groups)
            self._known.clear()
            self._feed(kind, namespace, name, self._parsed[identity], engine)
            changed = True
        return changed

    # -- look-ups ---------------------------------------------------------------------------------

    def of_kind(self, kind: str) -> Iterable[ObjectRecord]:
        return (record for (found, _, _), record in self.records.items() if found == kind)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Result of `make` for this key, cached until an object changes."""
        known: T | None = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = make()
        return known

    def covered(self, cluster_queue: str) -> frozenset[str] | None:
        """Resources that the queue counts; None if it does not exist yet."""
        key = ("covered", cluster_queue)
        known: frozenset[str] | None = self._known.get(key)
        queue = self.cluster_queue(cluster_queue) if known is None else None
        if queue is not None:
            names = (name for one in queue.resource_groups for name in one.covered_resources)
            known = self._known[key] = frozenset(names)
        return known

    def cluster_queue(self, name: str) -> ClusterQueue | None:
        return self._parsed.get(("ClusterQueue", "", name))

    def local_queue(self, namespace: str, name: str) -> LocalQueue | None:
        return self._parsed.get(("LocalQueue", namespace, name))

    def flavor(self, name: str) -> ResourceFlavor | None:
        return self._parsed.get(("ResourceFlavor", "", name))

    def cohort(self, name: str) -> Cohort | None:
        return self._parsed.get(("Cohort", "", name))

    @property
    def configuration(self) -> Configuration:
        """The Configuration; the last one applied if there are several."""
        known: Configuration | None = self._known.get("configuration")
        if known is None:
            found = [p for (kind, _, _), p in self._parsed.items() if kind == "Configuration"]
            known = self._known["configuration"] = found[-1] if found else _DEFAULT
        return known

    @property
    def transformations(self) -> Transformations:
        return self.configuration.transformations

    def priorities(self) -> Priorities:
        known: Priorities | None = self._known.get("priorities")
        if known is None:
            known = self._known["priorities"] = self._priorities()
        return known

    def _priorities(self) -> Priorities:
        classes: dict[str, dict[str, int]] = {"WorkloadPriorityClass": {}, "PriorityClass": {}}
        default = 0
        for (kind, _, name), parsed in self._parsed.items():
            if kind in classes:
                classes[kind][name] = parsed.value
                if parsed.default:
                    default = parsed.value
        return Priorities(classes["WorkloadPriorityClass"], classes["PriorityClass"], default)

    def annotation(self, identity: ObjectId, name: str) -> str | None:
        known = self._known.get(identity)
        if known is None:
            record = self.records.get(identity)
            if record is None:
                return None
            known = (json.loads(record.body).get("metadata") or {}).get("annotations") or {}
            self._known[identity] = known
        value = known.get(name)
        return None if value is None else str(value)

    def on_preemption(self, cluster_queue: str) -> OnPreemption:
        return self._choice(cluster_queue, ON_PREEMPTION, OnPreemption.STOP)

    def consolidation(self, cluster_queue: str) -> Consolidation:
        return self._choice(cluster_queue, CONSOLIDATION, Consolidation.NEVER)

    def _choice(self, cluster_queue: str, name: str, default: E) -> E:
        """An annotation of a ClusterQueue, which was validated when the queue was applied."""
        found = self.annotation(("ClusterQueue", "", cluster_queue), name)
        kind = type(default)
        return kind(found) if found else default


def read_on_preemption(document: Mapping[str, Any], path: str) -> OnPreemption | None:
    return _read_choice(document, path, ON_PREEMPTION, OnPreemption.STOP)


def read_consolidation(document: Mapping[str, Any], path: str) -> Consolidation | None:
    return _read_choice(document, path, CONSOLIDATION, Consolidation.NEVER)


def _read_choice(document: Mapping[str, Any], path: str, name: str, default: E) -> E | None:
    """The annotation's value; None without it. Raises ManifestError if it is invalid."""
    reader = Reader(document, path).child("metadata").child("annotations")
    choice = reader.choice(name, type(default), default, {})
    if reader.problems:
        raise ManifestError(reader.problems)
    return choice if reader.has(name) else None


def with_stop_policy(body: str, policy: StopPolicy) -> str:
    """An object's JSON with another `spec.stopPolicy`."""
    document = json.loads(body)
    document.setdefault("spec", {})["stopPolicy"] = policy.value
    return json.dumps(document)


def _read_queue(document: Mapping[str, Any], path: str) -> ClusterQueue:
    read_on_preemption(document, path)
    read_consolidation(document, path)
    return read_cluster_queue(document, path)


def _read_namespace(document: Mapping[str, Any], path: str) -> dict[str, str]:
    reader = Reader(document, path)
    labels = reader.child("metadata").labels("labels")
    if reader.problems:
        raise ManifestError(reader.problems)
    return labels


def _read_class(document: Mapping[str, Any], path: str) -> _Class:
    reader = Reader(document, path)
    found = _Class(reader.whole("value"), reader.flag("globalDefault"))
    if reader.problems:
        raise ManifestError(reader.problems)
    return found


def _read_levels(document: Mapping[str, Any], path: str) -> tuple[str, ...]:
    return read_topology_levels(document, path)[1]


def _read_limits(document: Mapping[str, Any], path: str) -> LimitRange:
    return read_limit_range(document, path)[1]


def _as_given(document: Mapping[str, Any], path: str) -> None:
    return None


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], str], Any]]] = {
    "Namespace": _read_namespace,
    "ResourceFlavor": read_flavor,
    "Topology": _read_levels,
    "Cohort": read_cohort,
    "ClusterQueue": _read_queue,
    "LocalQueue": read_local_queue,
    "LimitRange": _read_limits,
    "WorkloadPriorityClass": _read_class,
    "PriorityClass": _read_class,
    "Configuration": read_configuration,
    "AdmissionCheck": _as_given,
}
