"""Rules of Kueue's webhooks and CEL about a whole spec, beside the table's types and bounds.

They look only at objects that have the right types. An object with such a problem still works
here: it is refused because Kueue refuses it, and because it rarely means what was written.
Manifests of the old versions are in use that have limits without a cohort, and flavors without a
quota for each resource, so that these are refused in the stored version only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from queuecontroller.kueueapi.fields import STORED
from sluicecommon.kubernetes.quantity import QuantityError, exact_value
from sluicecommon.reader import Problem, shown

HOSTNAME: Final = "kubernetes.io/hostname"
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)
_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_LONGEST_VALUE: Final = 63
_LEAST_WEIGHT: Final = Fraction(1, 10**9)
_PRIORITY_KINDS: Final = {
    "WorkloadPriorityClass": "kueue.x-k8s.io",
    "PriorityClass": "scheduling.k8s.io",
}
_OPERATORS: Final = ("", "Equal", "Exists")
_EFFECTS: Final = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def rule_problems(kind: str, document: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of an object's spec."""
    is_new = str(document.get("apiVersion")).endswith(f"/{STORED}")
    spec: Mapping[str, Any] = document.get("spec") or {}
    match kind:
        case "ClusterQueue":
            alone = not (spec.get("cohortName") or spec.get("cohort"))
            if is_new:
                yield from _groups(spec, "the cohort" if alone else "", lends_own=True)
            yield from _weight(spec)
            yield from _preemption(spec)
            if is_new:
                yield from _checks(spec)
            selector = spec.get("namespaceSelector")
            yield from _selector(selector or {}, "spec.namespaceSelector")
        case "Cohort":
            alone = not (spec.get("parentName") or spec.get("parent"))
            if is_new:
                yield from _groups(spec, "a parent" if alone else "")
            yield from _weight(spec)
        case "LocalQueue":
            yield from _weight(spec)
        case "ResourceFlavor":
            yield from _flavor(spec)
        case "Topology":
            yield from _levels(spec)
        case "Workload":
            yield from _workload(spec)


def _groups(spec: Mapping[str, Any], missing: str, lends_own: bool = False) -> Iterator[Problem]:
    """Problems of the quotas. `missing`: what limits need and the object does not have;
    `lends_own`: true if it can only lend its own quota."""
    for i, group in enumerate(spec.get("resourceGroups") or ()):
        covered = list(group["coveredResources"])
        for j, flavor in enumerate(group["flavors"]):
            at = f"spec.resourceGroups[{i}].flavors[{j}].resources"
            given = [one["name"] for one in flavor["resources"]]
            if set(given) <= set(covered) and given != covered:
                what = f"are {', '.join(given)}, and coveredResources {', '.join(covered)}"
                yield Problem(at, what, "list the same resources in the same order")
            for k, one in enumerate(flavor["resources"]):
                for limit in ("borrowingLimit", "lendingLimit"):
                    if missing and one.get(limit) is not None:
                        what = f"is a limit without {missing} that it would be for"
                        yield Problem(f"{at}[{k}].{limit}", what, "remove it")
                if lends_own and not missing and _lends_more(one):
                    what = (
                        f"{one['lendingLimit']} is more than nominalQuota ({one['nominalQuota']})"
                    )
                    yield Problem(f"{at}[{k}].lendingLimit", what, "write less")


def _lends_more(quota: Mapping[str, Any]) -> bool:
    lends, own = quota.get("lendingLimit"), quota.get("nominalQuota")
    if lends is None or own is None:
        return False
    try:
        return exact_value(str(lends)) > exact_value(str(own))
    except QuantityError:
        return False  # `auto`, or refused as no quantity.


def _weight(spec: Mapping[str, Any]) -> Iterator[Problem]:
    weight = (spec.get("fairSharing") or {}).get("weight")
    if isinstance(weight, bool) or not isinstance(weight, str | int | float):
        return
    try:
        found = exact_value(str(weight))
    except QuantityError:
        return
    if 0 < found <= _LEAST_WEIGHT:
        what = f"{weight} is too small to be distinguished from 0"
        yield Problem("spec.fairSharing.weight", what, "write 0, or more than 1n")


def _checks(spec: Mapping[str, Any]) -> Iterator[Problem]:
    """A check on a flavor that the queue does not have is never asked."""
    known = {
        flavor.get("name")
        for group in spec.get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
    }
    strategy = spec.get("admissionChecksStrategy") or {}
    for i, check in enumerate(strategy.get("admissionChecks") or ()):
        for j, name in enumerate(check.get("onFlavors") or ()):
            if name not in known:
                at = f"spec.admissionChecksStrategy.admissionChecks[{i}].onFlavors[{j}]"
                what = f"{shown(name)} is not a flavor of the ClusterQueue"
                yield Problem(at, what, "name one of its resourceGroups")


def _preemption(spec: Mapping[str, Any]) -> Iterator[Problem]:
    given = spec.get("preemption") or {}
    borrowing = (given.get("borrowWithinCohort") or {}).get("policy", "Never")
    if given.get("reclaimWithinCohort", "Never") == "Never" and borrowing != "Never":
        what = "has no effect while reclaimWithinCohort is Never"
        yield Problem("spec.preemption.borrowWithinCohort", what, "set reclaimWithinCohort")


def _selector(selector: Mapping[str, Any], at: str) -> Iterator[Problem]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from label_problems(f"{at}.matchLabels", str(key), str(value))
    for i, one in enumerate(selector.get("matchExpressions") or ()):
        values: Sequence[Any] = one.get("values") or ()
        needs = one["operator"] in ("In", "NotIn")
        if needs is not bool(values):
            what = f"{one['operator']} takes {'one value or more' if needs else 'no values'}"
            yield Problem(f"{at}.matchExpressions[{i}].values", what, "change them")
        for value in values:
            yield from label_problems(f"{at}.matchExpressions[{i}].values", one["key"], str(value))


def label_problems(at: str, key: str, value: str) -> Iterator[Problem]:
    """Problems of a label's key and value."""
    if not _KEY.fullmatch(key):
        yield Problem(at, f"{shown(key)} is not a label's key", "write one such as a.io/pool")
    if len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
        what = f"{shown(value)} is not a label's value"
        yield Problem(at, what, "use at most 63 letters, digits, '-', '_' and '.'")


def _metadata(head: object, at: str) -> Iterator[Problem]:
    """Problems of the labels and annotations of a pod template, which the API server does not check
    where it is part of a Workload: no pod could be created from it."""
    labels, annotations = (
        found if isinstance(head, Mapping) and isinstance(found := head.get(key), Mapping) else {}
        for key in ("labels", "annotations")
    )
    for key, value in labels.items():
        yield from label_problems(f"{at}.labels", str(key), str(value))
    for key in annotations:
        if not _KEY.fullmatch(str(key).lower()):
            what = f"{shown(key)} is not an annotation's key"
            yield Problem(f"{at}.annotations", what, "write one such as a.io/name")


def _flavor(spec: Mapping[str, Any]) -> Iterator[Problem]:
    labels = spec.get("nodeLabels") or {}
    for key, value in labels.items():
        yield from label_problems("spec.nodeLabels", str(key), str(value))
    for i, taint in enumerate(spec.get("nodeTaints") or ()):
        yield from label_problems(
            f"spec.nodeTaints[{i}]", taint["key"], str(taint.get("value") or "")
        )
    for i, one in enumerate(spec.get("tolerations") or ()):
        yield from toleration_problems(one, f"spec.tolerations[{i}]")
    if spec.get("topologyName") and not labels:
        what = "a flavor with a topology names its nodes"
        yield Problem("spec.nodeLabels", what, "add a label of the nodes")


def toleration_problems(one: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Problems of a toleration, as of a pod."""
    key, operator = one.get("key") or "", one.get("operator") or ""
    value, effect = one.get("value") or "", one.get("effect") or ""
    if operator not in _OPERATORS:
        yield Problem(f"{at}.operator", f"{shown(operator)} is not Equal or Exists", "write one")
    if effect not in _EFFECTS:
        what = f"{shown(effect)} is not one of {', '.join(_EFFECTS[1:])}"
        yield Problem(f"{at}.effect", what, "write one of them")
    if operator == "Exists" and value:
        yield Problem(f"{at}.value", "Exists takes no value", "remove it")
    if not key and operator != "Exists":
        yield Problem(f"{at}.operator", "a toleration of every key is Exists", "write Exists")
    if key:
        yield from label_problems(at, key, value)
    if one.get("tolerationSeconds") is not None and effect != "NoExecute":
        what = "seconds are for NoExecute only"
        yield Problem(f"{at}.effect", what, "write NoExecute, or remove tolerationSeconds")


def _levels(spec: Mapping[str, Any]) -> Iterator[Problem]:
    levels = [one["nodeLabel"] for one in spec.get("levels") or ()]
    for i, label in enumerate(levels[:-1]):
        if label == HOSTNAME:
            what = f"{HOSTNAME} is not the lowest level"
            yield Problem(f"spec.levels[{i}].nodeLabel", what, "write it last")


def _workload(spec: Mapping[str, Any]) -> Iterator[Problem]:
    pod_sets = spec.get("podSets") or ()
    if not pod_sets:
        yield Problem("spec.podSets", "is required", "add a pod set")
    if sum(one.get("minCount") is not None for one in pod_sets) > 1:
        what = "two pod sets have a minCount"
        yield Problem("spec.podSets", what, "leave it in one of them")
    for i, one in enumerate(pod_sets):
        template = one.get("template") or {}
        yield from _metadata(template.get("metadata"), f"spec.podSets[{i}].template.metadata")
        pod = template.get("spec") or {}
        for part in ("initContainers", "containers"):
            for j, container in enumerate(pod.get(part) or ()):
                if "pods" in ((container.get("resources") or {}).get("requests") or {}):
                    at = f"spec.podSets[{i}].template.spec.{part}[{j}].resources.requests"
                    what = "pods is counted by the queue itself"
                    yield Problem(f"{at}.pods", what, "remove it")
    ref = spec.get("priorityClassRef")
    if isinstance(ref, Mapping):
        if _PRIORITY_KINDS.get(str(ref.get("kind"))) != ref.get("group"):
            what = f"{ref.get('kind')} is not a kind of {ref.get('group')}"
            yield Problem("spec.priorityClassRef", what, "write group and kind that fit")
        if spec.get("priority") is None:
            yield Problem("spec.priority", "is required with priorityClassRef", "add its value")
