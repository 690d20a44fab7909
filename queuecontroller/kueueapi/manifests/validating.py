"""Validation of Kueue's kinds for the API server.

An object is rejected here for the same problems and with the same messages as in a file; besides
for rules of the API alone (the form of names, required lists) and for changes that are not allowed
while a Workload holds quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.frameworks.annotations.gates import gate_problems
from queuecontroller.frameworks.names import ELASTIC, GATED_BY
from queuecontroller.frameworks.workload import WORKLOAD_CLASS
from queuecontroller.kueueapi import GROUP, KINDS
from queuecontroller.kueueapi.fields import Field, Fields, ListOf, Version
from queuecontroller.kueueapi.manifests.checking import check_kind, problems_as_api, version_of
from queuecontroller.kueueapi.manifests.kueue import (
    read_cluster_queue,
    read_cohort,
    read_flavor,
    read_local_queue,
    read_topology_levels,
)
from queuecontroller.kueueapi.manifests.rules import rule_problems
from queuecontroller.kueueapi.manifests.status_rules import status_problems
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.kueueapi.meaning import same_meaning
from sluicecommon.reader import ManifestError, Problem, shown

_READERS: Final[Mapping[str, Callable[[object, str], object]]] = MappingProxyType(
    {
        "ClusterQueue": read_cluster_queue,
        "Cohort": read_cohort,
        "LocalQueue": read_local_queue,
        "ResourceFlavor": read_flavor,
        "Topology": read_topology_levels,
        "Workload": read_workload,
    }
)
_TOPOLOGY_FIELDS: Final = ("required", "preferred", "unconstrained")
_FIXED_WHILE_RESERVED: Final = (
    *("podSets", "queueName", "priorityClassRef"),
    *("priorityClassName", "priorityClassSource", "maximumExecutionTimeSeconds"),
)


def _spec_rows() -> Mapping[str, Field]:
    spec = KINDS["Workload"].fields.of["spec"].type
    assert isinstance(spec, Fields)
    return spec.of


def _pod_set_row() -> Field:
    pod_sets = _SPEC_ROWS["podSets"].type
    assert isinstance(pod_sets, ListOf)
    return Field("One pod set.", pod_sets.item)


_SPEC_ROWS: Final = _spec_rows()
_POD_SET_ROW: Final = _pod_set_row()


def problems_of(document: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Problem]:
    """All problems for which it must be rejected; `old` is the object it replaces."""
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        what = f"expected a kind of {GROUP}, got {shown(kind)}"
        return [Problem("kind", what, f"write one of {', '.join(KINDS)}")]
    gates = list(_gates(document, old)) if kind == "Workload" else []
    if kind == "Workload" and old is not None:
        gates += status_problems(document, old)
    if old is not None and _same_spec(document, old, kind):
        return gates
    found = problems_as_api(document, KINDS[kind])
    reported = {one.field for one in found}
    try:
        if kind in _READERS:
            _READERS[kind](document, "")
        else:
            check_kind(kind, document)
    except ManifestError as error:
        found += [one for one in error.problems if one.field not in reported]
    if not found:  # these look only at what is as it should be
        found += rule_problems(kind, document)
        if kind in ("ClusterQueue", "Cohort"):
            found += _in_two_groups(document)
        if kind == "Workload":
            found += _pod_sets(document)
            found += _changes(document, old or {})
    return found + gates


def _same_spec(document: Mapping[str, Any], old: Mapping[str, Any], kind: str) -> bool:
    """True if the spec means the same: an object stored before a rule existed must still lose its
    finalizers, or it could never be deleted."""
    rows = {name: one for name, one in KINDS[kind].fields.of.items() if name != "status"}
    version = version_of(document)
    return all(
        same_meaning(document.get(name), old.get(name), row, version) for name, row in rows.items()
    )


def _gates(document: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[Problem]:
    """Problems of the annotation that names the controllers by which admission is gated."""
    now, before = (_annotation(one, GATED_BY) for one in (document, old or {}))
    if old is not None and now == before:
        return
    yield from gate_problems(now, None if old is None else before or "")


def _annotation(document: Mapping[str, Any], name: str) -> object:
    head = document.get("metadata")
    annotations = head.get("annotations") if isinstance(head, Mapping) else None
    return annotations.get(name) if isinstance(annotations, Mapping) else None


def _spec(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document.get("spec") or {}


def _in_two_groups(document: Mapping[str, Any]) -> Iterator[Problem]:
    places: dict[tuple[str, str], str] = {}
    for i, group in enumerate(_spec(document).get("resourceGroups") or ()):
        at = f"spec.resourceGroups[{i}]"
        names = [("resource", one, f"{at}.coveredResources") for one in group["coveredResources"]]
        names += [("flavor", one["name"], f"{at}.flavors") for one in group["flavors"]]
        for what, name, place in names:
            first = places.setdefault((what, name), place)
            if first != place:
                text = f"{what} {shown(name)} is in two groups (the first is {first})"
                yield Problem(place, text, "leave it in one of them")
        covered = set(group["coveredResources"])
        for j, flavor in enumerate(group["flavors"]):
            for k, one in enumerate(flavor["resources"]):
                if one["name"] not in covered:
                    yield Problem(
                        f"{at}.flavors[{j}].resources[{k}].name",
                        f"{shown(one['name'])} is not among the group's coveredResources",
                        "add it there, or take the quota out",
                    )


def _pod_sets(document: Mapping[str, Any]) -> Iterator[Problem]:
    for i, one in enumerate(_spec(document).get("podSets") or ()):
        at = f"spec.podSets[{i}]"
        least, count = one.get("minCount"), one.get("count", 1)
        if least is not None and least > count:
            yield Problem(f"{at}.minCount", f"{least} is more than count ({count})", "write less")
        request = one.get("topologyRequest") or {}
        if len(given := [name for name in _TOPOLOGY_FIELDS if request.get(name)]) > 1:
            what = f"{' and '.join(given)} are given together"
            yield Problem(f"{at}.topologyRequest", what, "leave one of them")


def _changes(document: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Problem]:
    if not (_reserved(old) and _reserved(document)):
        return
    version = version_of(document)
    for name in _FIXED_WHILE_RESERVED:
        if name == "podSets" and _shrinks(document, old, version):
            continue
        if name.startswith("priorityClass") and _other_class(document, old):
            continue
        if name == "maximumExecutionTimeSeconds" and not _holds(old, "Admitted"):
            continue
        row = _SPEC_ROWS[name]
        if not same_meaning(_spec(document).get(name), _spec(old).get(name), row, version):
            what = "cannot be changed while quota is reserved"
            yield Problem(f"spec.{name}", what, "set spec.active to false first, then change it")


def _other_class(document: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """True if it has a WorkloadPriorityClass and had one, which may change while it runs."""
    return all(_has_workload_class(_spec(one)) for one in (document, old))


def _has_workload_class(spec: Mapping[str, Any]) -> bool:
    ref = spec.get("priorityClassRef")
    source = spec.get("priorityClassSource")
    return (isinstance(ref, Mapping) and ref.get("kind") == WORKLOAD_CLASS) or (
        isinstance(source, str) and source.endswith("/workloadpriorityclass")
    )


def _shrinks(document: Mapping[str, Any], old: Mapping[str, Any], version: Version | None) -> bool:
    """True if an elastic job's Workload only loses pods, which it may while they run."""
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    if annotations.get(ELASTIC) != "true":
        return False
    now, was = (_spec(one).get("podSets") or [] for one in (document, old))
    return len(now) == len(was) and all(
        one.get("count", 1) <= other.get("count", 1)
        and same_meaning({**one, "count": 0}, {**other, "count": 0}, _POD_SET_ROW, version)
        for one, other in zip(now, was, strict=True)
    )


def _reserved(document: Mapping[str, Any]) -> bool:
    return _holds(document, "QuotaReserved")


def _holds(document: Mapping[str, Any], kind: str) -> bool:
    conditions = (document.get("status") or {}).get("conditions") or ()
    return any(
        isinstance(one, dict) and one.get("type") == kind and one.get("status") == "True"
        for one in conditions
    )
