"""Rules about a Workload's status, for writers besides the queue's controller: controllers of
admission checks, job frameworks of their own, people.

Only new problems are reported: an object that was stored before a rule existed can be changed and
deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuecontroller.kueueapi.manifests.rules import label_problems, toleration_problems
from sluicecommon.kubernetes.quantity import QuantityError, parse_amount
from sluicecommon.reader import Problem, shown

_SUFFIXES: Final = ("universal", "individual")


def status_problems(document: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of a changed status."""
    status, before = _status(document), _status(old)
    if status == before:
        return
    known = {*_own(old)}
    yield from (one for one in _own(document) if one not in known)
    yield from _changes(status, before)


def is_reserved(status: Mapping[str, Any]) -> bool:
    return _holds(status, "QuotaReserved")


def _holds(status: Mapping[str, Any], kind: str) -> bool:
    return any(
        one.get("type") == kind and one.get("status") == "True"
        for one in _entries(status, "conditions")
    )


def _status(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("status")
    return found if isinstance(found, Mapping) else {}


def _entries(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = holder.get(key)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _own(document: Mapping[str, Any]) -> Iterator[Problem]:
    status = _status(document)
    spec = document.get("spec") or {}
    counts = {one.get("name", "main"): one.get("count", 1) for one in _entries(spec, "podSets")}
    admission = status.get("admission")
    if is_reserved(status) and not isinstance(admission, Mapping):
        what = "is required while QuotaReserved is True"
        yield Problem("status.admission", what, "add it, or set the condition to False")
    for i, one in enumerate(_entries(status, "reclaimablePods")):
        at = f"status.reclaimablePods[{i}]"
        if one.get("name") not in counts:
            yield _unknown(f"{at}.name", one)
        elif _number(one, "count") > counts[one["name"]]:
            what = f"{one.get('count')} is more than the pod set has ({counts[one['name']]})"
            yield Problem(f"{at}.count", what, "write less")
    for i, check in enumerate(_entries(status, "admissionChecks")):
        for j, one in enumerate(_entries(check, "podSetUpdates")):
            yield from _update(one, f"status.admissionChecks[{i}].podSetUpdates[{j}]", counts)
    if isinstance(admission, Mapping):
        assigned = _entries(admission, "podSetAssignments")
        if is_reserved(status) and len(assigned) != len(counts):
            what = f"has {len(assigned)} pod sets, and the Workload {len(counts)}"
            yield Problem("status.admission.podSetAssignments", what, "assign each of them")
        for i, one in enumerate(assigned):
            yield from _assignment(one, f"status.admission.podSetAssignments[{i}]", counts)
    name, nominated = status.get("clusterName"), status.get("nominatedClusterNames")
    if name and nominated:
        what = "is given together with nominatedClusterNames"
        yield Problem("status.clusterName", what, "leave one of them")


def _update(one: Mapping[str, Any], at: str, counts: Mapping[Any, Any]) -> Iterator[Problem]:
    """Problems of what a check adds to pods: the API server would refuse the pods."""
    if one.get("name") not in counts:
        yield _unknown(f"{at}.name", one)
    for part in ("labels", "nodeSelector"):
        labels = one.get(part)
        for key, value in labels.items() if isinstance(labels, Mapping) else ():
            yield from label_problems(f"{at}.{part}", str(key), str(value))
    for i, toleration in enumerate(_entries(one, "tolerations")):
        yield from toleration_problems(toleration, f"{at}.tolerations[{i}]")


def _unknown(at: str, one: Mapping[str, Any]) -> Problem:
    return Problem(at, f"{shown(one.get('name'))} is no pod set", "name one of spec.podSets")


def _number(one: Mapping[str, Any], key: str) -> int:
    found = one.get(key)
    return found if type(found) is int else 0


def _assignment(one: Mapping[str, Any], at: str, counts: Mapping[Any, Any]) -> Iterator[Problem]:
    if one.get("name", "main") not in counts:
        yield _unknown(f"{at}.name", one)
    count = _number(one, "count")
    usage = one.get("resourceUsage")
    for name, amount in usage.items() if isinstance(usage, Mapping) and count else ():
        try:
            divisible = parse_amount(name, amount) % count == 0
        except QuantityError:
            continue  # The schema refuses it.
        if not divisible:
            what = f"{amount} is not a multiple of the number of pods ({count})"
            yield Problem(f"{at}.resourceUsage.{name}", what, "write the sum of equal pods")
    topology = one.get("topologyAssignment")
    if isinstance(topology, Mapping):
        yield from _topology(topology, f"{at}.topologyAssignment")


def _topology(given: Mapping[str, Any], at: str) -> Iterator[Problem]:
    levels = given.get("levels") or []
    for i, one in enumerate(_entries(given, "domains")):
        if len(one.get("values") or ()) != len(levels):
            yield Problem(f"{at}.domains[{i}].values", "has not a value for each level", "add them")
    for i, one in enumerate(_entries(given, "slices")):
        domains = _number(one, "domainCount")
        values = _entries(one, "valuesPerLevel")
        if len(values) != len(levels):
            what = "has not an entry for each level"
            yield Problem(f"{at}.slices[{i}].valuesPerLevel", what, "add them")
        pods = one.get("podCounts")
        lists: list[tuple[str, Any, str | None]] = [(f"{at}.slices[{i}].podCounts", pods, None)]
        lists += [
            (f"{at}.slices[{i}].valuesPerLevel[{j}]", each, "roots")
            for j, each in enumerate(values)
        ]
        for where, holder, inner in lists:
            yield from _one_or_each(holder, inner, domains, where)


def _one_or_each(holder: Any, inner: str | None, domains: int, at: str) -> Iterator[Problem]:
    """A common value, or one for each domain."""
    given = [
        one for one in _SUFFIXES if isinstance(holder, Mapping) and holder.get(one) is not None
    ]
    if len(given) != 1:
        yield Problem(at, "needs either universal or individual", "write one of them")
        return
    if given == ["individual"]:
        found = holder["individual"]
        found = found.get(inner) if inner is not None and isinstance(found, Mapping) else found
        if not isinstance(found, list) or len(found) != domains:
            what = f"has not one entry for each of {domains} domains"
            yield Problem(f"{at}.individual", what, "change them, or domainCount")


def _changes(status: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Problem]:
    if is_reserved(status) and is_reserved(before):
        if status.get("admission") != before.get("admission") and before.get("admission"):
            what = "cannot be changed while quota is reserved"
            yield Problem("status.admission", what, "only the queue's controller assigns quota")
        now = {
            one.get("name"): _number(one, "count") for one in _entries(status, "reclaimablePods")
        }
        for one in _entries(before, "reclaimablePods"):
            if now.get(one.get("name"), 0) < _number(one, "count"):
                what = f"{shown(one.get('name'))} has fewer than before ({one.get('count')})"
                yield Problem("status.reclaimablePods", what, "released quota does not come back")
    checks = {one.get("name"): one for one in _entries(before, "admissionChecks")}
    for i, one in enumerate(_entries(status, "admissionChecks")):
        was = checks.get(one.get("name")) or {}
        both_ready = one.get("state") == was.get("state") == "Ready"
        if both_ready and (one.get("podSetUpdates") or []) != (was.get("podSetUpdates") or []):
            at = f"status.admissionChecks[{i}].podSetUpdates"
            yield Problem(at, "cannot be changed once the check is Ready", "leave them")
    name, was_name = status.get("clusterName"), before.get("clusterName")
    if was_name and name and name != was_name:
        yield Problem("status.clusterName", "cannot be changed", "evict the Workload first")
    nominated = before.get("nominatedClusterNames") or []
    if name and not was_name and nominated and name not in nominated:
        what = f"{shown(name)} is not among nominatedClusterNames"
        yield Problem("status.clusterName", what, "choose one of them")
