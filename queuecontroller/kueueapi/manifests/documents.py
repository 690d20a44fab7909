"""Whole files of manifests: every object of a YAML or JSON text, sorted by kind.

Problems of all objects are collected, each with its file, line and field. Of two objects of one
kind and name the last counts, as if they were applied one after the other. Kinds that have nothing
to do with queueing are passed over and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from queuecontroller.kueueapi import GROUP
from queuecontroller.kueueapi import KINDS as KUEUE_KINDS
from queuecontroller.kueueapi.manifests.checking import check_kind
from queuecontroller.kueueapi.manifests.configuration import read_configuration
from queuecontroller.kueueapi.manifests.jobs import (
    SUBMITTED,
    Priorities,
    missing_class,
    workloads_of,
)
from queuecontroller.kueueapi.manifests.kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_limit_range,
    read_local_queue,
    read_topology_levels,
)
from queuecontroller.kueueapi.manifests.nodes import read_node
from queuecontroller.kueueapi.manifests.sources import CLUSTER_WIDE, Source, sources_of
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.limit_range import LimitRange
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Workload,
)
from queuecontroller.scheduler.model.settings import AdmissionFairSharing
from queuecontroller.scheduler.model.transformations import Transformations
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from sluicecommon.reader import ManifestError, Problem, Reader

KUEUE_VERSIONS: Final = frozenset({"v1alpha1", "v1alpha2", "v1beta1", "v1beta2"})
"""v1alpha1 is where Cohort and Topology began."""
KINDS: Final = frozenset(
    {*CLUSTER_WIDE, *SUBMITTED, "LocalQueue", "LimitRange", "Workload", "Node"}
)
"""Kinds that affect queueing."""


@dataclass(frozen=True, slots=True)
class Misread:
    """A problem of one object in a file."""

    source: Source
    line: int
    """Line in the file, from 1; 0: unknown."""
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.source.file}:{self.line}" if self.line else self.source.file
        what = f"{self.source.label} {self.field}".rstrip() if self.source.kind else self.field
        return f"{where}: {what}{': ' if what else ''}{self.message} (fix: {self.fix})"


def misread_of(source: Source, problem: Problem) -> Misread:
    fix = problem.fix or "correct it, or take it out"
    return Misread(source, source.line(problem.field), problem.field, problem.message, fix)


@dataclass(slots=True)
class Documents:
    """All objects of one or several texts."""

    sources: list[Source] = field(default_factory=list)
    """Every object that counts, with its position."""
    replaced: list[tuple[Source, Source]] = field(default_factory=list)
    """Objects that do not count, each with the later one of the same kind and name."""
    flavors: list[ResourceFlavor] = field(default_factory=list)
    topologies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cohorts: list[Cohort] = field(default_factory=list)
    cluster_queues: list[ClusterQueue] = field(default_factory=list)
    local_queues: list[LocalQueue] = field(default_factory=list)
    limit_ranges: dict[str, list[LimitRange]] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    transformations: Transformations = field(default_factory=Transformations)
    admission_fair_sharing: AdmissionFairSharing | None = None
    workloads: list[Workload] = field(default_factory=list)
    nodes: dict[str, NodeCapacity] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    """`kind/name` of documents that make no object of the queue: Nodes, jobs without a Workload,
    and kinds that do not affect queueing."""
    problems: list[Misread] = field(default_factory=list)


def load(texts: Mapping[str, str]) -> Documents:
    """Read texts by file name. Invalid documents are left out and reported in `problems`."""
    return _Loading(texts).result


class _Loading:
    """Reads Configuration and priority classes first, wherever they are in the texts, since other
    objects are read by them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.result = Documents()
        found, wrong = sources_of(texts)
        for source, problem in wrong:
            self._misread(source, problem)
        self._keep_the_last(found)
        self._classes: dict[str, dict[str, int]] = {
            "WorkloadPriorityClass": {},
            "PriorityClass": {},
        }
        self._default = 0
        for one in self.result.sources:
            if one.kind in self._classes:
                self._try(self._class, one)
            elif one.kind == "Configuration":
                self._try(self._configure, one)
        self._priorities = Priorities(
            self._classes["WorkloadPriorityClass"], self._classes["PriorityClass"], self._default
        )
        for one in self.result.sources:
            self._try(self._take, one)

    def _keep_the_last(self, found: list[Source]) -> None:
        ours = (one for one in found if one.name and one.kind in KINDS)
        last = {(one.kind, one.namespace, one.name): one for one in ours}
        for one in found:
            counts = last.get((one.kind, one.namespace, one.name), one)
            if counts is one:
                self.result.sources.append(one)
            else:
                self.result.replaced.append((one, counts))

    def _misread(self, source: Source, problem: Problem) -> None:
        self.result.problems.append(misread_of(source, problem))

    def _try(self, step: Callable[[Source], None], one: Source) -> None:
        try:
            step(one)
        except ManifestError as error:
            for problem in error.problems:
                self._misread(one, problem)

    def _class(self, one: Source) -> None:
        if one.kind == "WorkloadPriorityClass":
            check_kind(one.kind, one.body)
        reader = Reader(one.body)
        name, value = reader.child("metadata").required("name"), reader.whole("value")
        default = reader.flag("globalDefault")
        if reader.problems:
            raise ManifestError(reader.problems)
        self._classes[one.kind][name] = value
        if default:
            self._default = value

    def _configure(self, one: Source) -> None:
        found = read_configuration(one.body, "")
        self.result.transformations = found.transformations
        self.result.admission_fair_sharing = found.admission_fair_sharing

    def _take(self, one: Source) -> None:
        kind, body = one.kind, one.body
        result = self.result
        group, _, version = str(body.get("apiVersion", "")).rpartition("/")
        if group == GROUP and version not in KUEUE_VERSIONS:
            known = ", ".join(sorted(KUEUE_VERSIONS))
            what = f"unknown version {version} (known: {known})"
            raise ManifestError([Problem("apiVersion", what, f"write {group}/v1beta1")])
        if kind == "ResourceFlavor":
            result.flavors.append(read_flavor(body, ""))
        elif kind == "ClusterQueue":
            result.cluster_queues.append(read_cluster_queue(body, ""))
        elif kind == "LocalQueue":
            result.local_queues.append(read_local_queue(body, ""))
        elif kind == "Cohort":
            result.cohorts.append(read_cohort(body, ""))
        elif kind == "Topology":
            name, levels = read_topology_levels(body, "")
            result.topologies[name] = levels
        elif kind == "LimitRange":
            namespace, limits = read_limit_range(body, "")
            result.limit_ranges.setdefault(namespace, []).append(limits)
        elif kind == "Namespace":
            name, labels = _head(body)
            result.namespaces[name] = labels
        elif kind == "Node":
            result.nodes[one.name] = read_node(body)
            result.passed_over.append(one.label)
        elif kind == "Workload":
            workload = read_workload(body, "", result.transformations)
            result.workloads.append(replace(workload, namespace=one.namespace))
        elif kind in SUBMITTED:
            made = workloads_of(body, "", result.transformations, self._priorities)
            missing = missing_class(body, self._priorities.workload_classes)
            if made and missing is not None:
                raise ManifestError([missing])
            result.workloads += made
            if not made:
                result.passed_over.append(one.label)
        elif kind not in ("Configuration", "PriorityClass", "WorkloadPriorityClass"):
            if kind in KUEUE_KINDS and group in ("", GROUP):
                check_kind(kind, body)
            result.passed_over.append(one.label)


def _head(body: Mapping[str, object]) -> tuple[str, dict[str, str]]:
    """Name and labels of an object whose other fields are not used."""
    head = Reader(body).child("metadata")
    found = head.required("name"), head.labels("labels")
    if head.problems:
        raise ManifestError(head.problems)
    return found
