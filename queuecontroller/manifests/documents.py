"""Whole files of manifests: every document of a YAML or JSON text, sorted by what it is.

Problems of all documents are collected, each with its file and place. Kinds that have nothing to
do with queueing are passed over and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from queuecontroller.engine.limit_range import LimitRange
from queuecontroller.engine.model import (
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Workload,
)
from queuecontroller.engine.settings import AdmissionFairSharing
from queuecontroller.engine.transformations import Transformations

from .configuration import read_configuration
from .jobs import SUBMITTED, Priorities, workloads_of
from .kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_limit_range,
    read_local_queue,
    read_topology_levels,
    read_workload,
)
from .reader import ManifestError, Problem, Reader

KUEUE_VERSIONS: Final = frozenset({"v1alpha1", "v1alpha2", "v1beta1", "v1beta2"})
"""v1alpha1 is where Cohort and Topology began."""


@dataclass(slots=True)
class Documents:
    """What one or several texts hold."""

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
    passed_over: list[str] = field(default_factory=list)
    """`kind/name` of documents that decide nothing here."""
    problems: list[Problem] = field(default_factory=list)


def load(texts: Mapping[str, str]) -> Documents:
    """Reads texts by file name. Wrong documents are left out and told in `problems`."""
    return _Loading(texts).result


class _Loading:
    """Configuration and priorities are read before what they change, wherever they stand."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.result = Documents()
        found = [pair for name, text in texts.items() for pair in self._split(name, text)]
        classes: dict[str, dict[str, int]] = {"WorkloadPriorityClass": {}, "PriorityClass": {}}
        default = 0
        for _, one in found:
            if one.get("kind") in classes:
                reader = Reader(one)
                name = reader.child("metadata").text("name")
                classes[one["kind"]][name] = reader.whole("value")
                if reader.flag("globalDefault"):
                    default = reader.whole("value")
            elif one.get("kind") == "Configuration":
                self._try(self._configure, one, "Configuration")
        self._priorities = Priorities(
            classes["WorkloadPriorityClass"], classes["PriorityClass"], default
        )
        for path, one in found:
            self._try(self._take, one, path)

    def _split(self, name: str, text: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
        try:
            documents = list(yaml.safe_load_all(text))
        except yaml.YAMLError as error:
            self.result.problems.append(Problem(name, f"is no YAML: {error}"))
            return
        for i, one in enumerate(documents):
            if one is None:
                continue
            if not isinstance(one, Mapping) or not isinstance(one.get("kind"), str):
                self.result.problems.append(Problem(f"{name}[{i}]", "has no kind"))
                continue
            items = one.get("items") if one["kind"] == "List" else [one]
            for item in items or ():
                head = item.get("metadata") or {}
                yield f"{name}:{item.get('kind')}/{head.get('name', '')}", item

    def _try(
        self, step: Callable[[Mapping[str, Any], str], None], one: Mapping[str, Any], path: str
    ) -> None:
        try:
            step(one, path)
        except ManifestError as error:
            self.result.problems += error.problems

    def _configure(self, one: Mapping[str, Any], path: str) -> None:
        found = read_configuration(one, path)
        self.result.transformations = found.transformations
        self.result.admission_fair_sharing = found.admission_fair_sharing

    def _take(self, one: Mapping[str, Any], path: str) -> None:
        kind = one["kind"]
        result = self.result
        group, _, version = str(one.get("apiVersion", "")).rpartition("/")
        if group == "kueue.x-k8s.io" and version not in KUEUE_VERSIONS:
            known = ", ".join(sorted(KUEUE_VERSIONS))
            raise ManifestError([Problem(path, f"unknown version {version} (known: {known})")])
        if kind == "ResourceFlavor":
            result.flavors.append(read_flavor(one, path))
        elif kind == "ClusterQueue":
            result.cluster_queues.append(read_cluster_queue(one, path))
        elif kind == "LocalQueue":
            result.local_queues.append(read_local_queue(one, path))
        elif kind == "Cohort":
            result.cohorts.append(read_cohort(one, path))
        elif kind == "Topology":
            name, levels = read_topology_levels(one, path)
            result.topologies[name] = levels
        elif kind == "LimitRange":
            namespace, limits = read_limit_range(one, path)
            result.limit_ranges.setdefault(namespace, []).append(limits)
        elif kind == "Namespace":
            head = Reader(one, path).child("metadata")
            result.namespaces[head.required("name")] = head.labels("labels")
        elif kind == "Workload":
            result.workloads.append(read_workload(one, path, result.transformations))
        elif kind in SUBMITTED:
            made = workloads_of(one, path, result.transformations, self._priorities)
            result.workloads += made
            if not made:
                result.passed_over.append(path.partition(":")[2])
        elif kind not in ("Configuration", "PriorityClass", "WorkloadPriorityClass"):
            result.passed_over.append(path.partition(":")[2])
