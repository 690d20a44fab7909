"""A Workload's conditions, and the comparison of its pod sets with a job's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.frameworks.patches import ABSENT, Document, at, same
from queuecontroller.scheduler.model import reasons


def holds(workload: Document, condition: str) -> bool:
    """True if this condition of the Workload is True."""
    return any(
        one.get("status") == "True" for one in _conditions(workload) if one.get("type") == condition
    )


def is_checkpointed(workload: Document) -> bool:
    """True while its pods are told to be checkpointed, or are: they are not stopped."""
    found = condition_of(workload, reasons.CHECKPOINTED)
    return found.get("status") == "True" or found.get("reason") == reasons.CHECKPOINT_REQUESTED


def is_restoring(workload: Document) -> bool:
    return condition_of(workload, reasons.CHECKPOINTED).get("reason") == reasons.RESTORING


def keeps_quota(workload: Document) -> bool:
    """True if it holds quota, or a part of it since its pods were checkpointed."""
    return holds(workload, reasons.QUOTA_RESERVED) or is_present(
        at(workload, ("status", "checkpointed"))
    )


def reason_of(workload: Document, condition: str) -> str:
    for one in _conditions(workload):
        if one.get("type") == condition and isinstance(one.get("message"), str):
            return str(one["message"])
    return condition


def condition_of(workload: Document, condition: str) -> Mapping[str, Any]:
    """The condition; empty if the Workload has none of that type."""
    found = (one for one in _conditions(workload) if one.get("type") == condition)
    return next(found, {})


def _conditions(workload: Document) -> list[Mapping[str, Any]]:
    found = at(workload, ("status", "conditions"))
    return [one for one in found if isinstance(one, Mapping)] if is_list(found) else []


def pod_sets_of(workload: Document | None) -> list[Mapping[str, Any]]:
    found = at(workload, ("spec", "podSets"))
    return [one for one in found if isinstance(one, Mapping)] if is_list(found) else []


def reclaimable_of(workload: Document) -> dict[str, int]:
    found = at(workload, ("status", "reclaimablePods"))
    if not is_list(found):
        return {}
    return {
        one["name"]: one["count"]
        for one in found
        if isinstance(one, Mapping)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("count"), int)
    }


def owned_by(workload: Document, document: Document) -> bool:
    owners = at(workload, ("metadata", "ownerReferences"))
    uid = at(document, ("metadata", "uid"))
    return is_list(owners) and any(
        isinstance(one, Mapping) and one.get("uid") == uid for one in owners
    )


_PARTS: Final = ("containers", "initContainers")
_WHOLE: Final = ("resources", "resourceClaims")
"""Requests of the pod itself."""
_PLACES: Final = ("required", "preferred", "unconstrained", "podSetGroupName")
_LAYERS: Final = "podsetSliceRequiredTopologyConstraints"
_DIRECTIVES: Final = ("nodeSelector", "tolerations", "affinity")


def counts_of(known: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found = {str(one.get("name", "main")): one.get("count", 1) for one in known}
    return {name: count for name, count in found.items() if type(count) is int}


def let_in(workload: Document) -> dict[str, int]:
    """Number of admitted pods by pod set, where it is smaller than requested. A job that another
    controller started has that many pods, and no annotation with its original counts."""
    given = at(workload, ("status", "admission", "podSetAssignments"))
    known = [one for one in given if isinstance(one, Mapping)] if is_list(given) else []
    shrinks = [one for one in pod_sets_of(workload) if one.get("minCount") is not None]
    fewer = [str(one.get("name")) for one in shrinks]
    return {name: count for name, count in counts_of(known).items() if name in fewer}


def alike(
    mine: Mapping[str, Any], given: Mapping[str, Any], fixed: bool, counted: bool = True
) -> bool:
    """True if two pod sets have equal requests, also for their place. Where a running job has no
    annotation with its original fields, its templates contain what its admission added."""
    if mine["name"] != given.get("name", "main"):
        return False
    if counted and mine["count"] != given.get("count", 1):
        return False
    if mine.get("minCount") != given.get("minCount"):
        return False
    here, there = at(mine, ("template", "spec")), at(given, ("template", "spec"))
    if any(not same(_asked(here, one), _asked(there, one)) for one in _PARTS):
        return False
    exact = (*_WHOLE, *_DIRECTIVES) if fixed else _WHOLE
    if any(not same(_or_none(at(here, (one,))), _or_none(at(there, (one,)))) for one in exact):
        return False
    return not fixed or same(_place(mine), _place(given))


def _asked(spec: Any, part: str) -> list[Any]:
    """Resources of containers; their other fields do not count."""
    found = at(spec, (part,))
    keys = ("resources", "restartPolicy")
    return [[_or_none(at(one, (key,))) for key in keys] for one in found] if is_list(found) else []


def _place(pod_set: Mapping[str, Any]) -> list[Any]:
    """The constraints on the places of the pods; fields that only number the pods do not count."""
    request = at(pod_set, ("topologyRequest",))
    if not isinstance(request, Mapping):
        return [None] * (len(_PLACES) + 1)
    slices = request.get(_LAYERS)
    level, size = (request.get(f"podSetSlice{one}") for one in ("RequiredTopology", "Size"))
    if not slices and level:  # Both say the same.
        slices = [{"topology": level, "size": size}]
    return [*(request.get(name) or None for name in _PLACES), slices or None]


def _or_none(value: Any) -> Any:
    return None if value is ABSENT or value == {} or value == [] else value


def is_present(value: object) -> bool:
    return value is not ABSENT and value is not None


def is_list(value: object) -> bool:
    return isinstance(value, list)
