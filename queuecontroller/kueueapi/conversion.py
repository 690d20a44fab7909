"""Conversion of an object between the API versions. Pure; no field that a user wrote is lost.

Between v1beta1 and v1beta2: ClusterQueue `cohort` and `cohortName`, `admissionChecks` and
`admissionChecksStrategy`, Borrow and Preempt and MayStopSearch; LocalQueue `flavorUsage` and
`flavorsUsage`; Workload's priority class, a misspelt field, `domains` and `slices`;
MultiKueueCluster `clusterSource`; AdmissionCheck `retryDelayMinutes`. v1alpha2 has the fields of
v1beta1.

Fields that the other version cannot express are stored in an annotation and restored by the
conversion back: `sluice.dev/as-v1beta1` holds the fields of the spec that differ. Any user can
write an annotation, so it is not trusted: it counts only if the spec made with it converts to
exactly the current spec. So it can restore a spelling, never another meaning. Of a status nothing
is stored: `pendingWorkloadsStatus` of a ClusterQueue and `flavors` of a LocalQueue end with
v1beta1.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from queuecontroller.kueueapi.fields import OLD, Version
from queuecontroller.kueueapi.table import GROUP, KINDS
from queuecontroller.kueueapi.workload_fields import OLD_CLASS_SOURCES
from queuecontroller.scheduler.placement.topology.slices import domains_of, slices_of

LARGEST_KEPT: Final = 16 << 10
"""Characters of the annotation; all annotations of an object may have 256 KiB together."""
_DEPTH: Final = 32

Object = dict[str, Any]


class ConversionError(ValueError):
    """A failed conversion; the text names the object and the reason."""


def convert(document: Mapping[str, Any], wanted: str) -> Object:
    """Convert a document. `wanted` is an apiVersion, such as kueue.x-k8s.io/v1beta2. The result may
    share parts of the document, which stays unchanged. Raises ConversionError."""
    kind, given = _kind_of(document), _version_of(document.get("apiVersion"))
    to = _version_of(wanted)
    for version in (given, to):
        if version not in KINDS[kind].versions:
            raise ConversionError(f"{kind} is not served as {GROUP}/{version}")
    made = _copied(kind, document)
    made["apiVersion"] = wanted
    if (given in OLD) == (to in OLD):
        return made
    _take_kept(made, _side(given))  # belongs on the other side only
    kept = _take_kept(made, _side(to))
    before = _copied_spec(kind, made.get("spec"))  # only a spec is ever kept
    _plain(kind, made, to)
    if kept:
        _give_back(kind, made, kept, to, given, before)
    lost = _difference(before, _back(kind, made, given))
    if lost is not None:
        _keep(made, _side(given), lost)
    return made


def _kind_of(document: Mapping[str, Any]) -> str:
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConversionError(f"kind: must be one of {', '.join(KINDS)}, got {str(kind)[:80]!r}")
    return kind


def _version_of(api_version: object) -> Version:
    group, _, version = str(api_version)[:200].rpartition("/")
    if group != GROUP or version not in set(Version):
        raise ConversionError(
            f"apiVersion: expected a version of {GROUP}, got {str(api_version)[:80]!r}"
        )
    return Version(version)


def _side(version: Version) -> str:
    return "v1beta1" if version in OLD else "v1beta2"


# -- what differs, kind by kind ----------------------------------------------------------------


def _mapping(holder: Mapping[str, Any], *path: str) -> Object:
    """The mapping at a key; an invalid one counts as empty, since validation reports it with a
    better message."""
    found: Any = holder
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _rename(holder: Object, old: str, new: str) -> None:
    if old in holder and new not in holder:
        holder[new] = holder.pop(old)


def _cluster_queue_new(made: Object) -> None:
    spec = _mapping(made, "spec")
    _rename(spec, "cohort", "cohortName")
    fungibility = _mapping(spec, "flavorFungibility")
    for key, word in _OLD_WORDS.items():
        if fungibility.get(key) == word:
            fungibility[key] = "MayStopSearch"
    names = spec.get("admissionChecks")
    if isinstance(names, list) and all(isinstance(one, str) for one in names):
        del spec["admissionChecks"]
        strategy = spec.setdefault("admissionChecksStrategy", {}) if names else {}
        rules = strategy.setdefault("admissionChecks", []) if isinstance(strategy, dict) else []
        there = {one.get("name") for one in rules if isinstance(one, dict)}
        rules += [{"name": name} for name in dict.fromkeys(names) if name not in there]
    _mapping(made, "status").pop("pendingWorkloadsStatus", None)


def _cluster_queue_old(made: Object) -> None:
    spec = _mapping(made, "spec")
    _rename(spec, "cohortName", "cohort")
    fungibility = _mapping(spec, "flavorFungibility")
    for key, word in _OLD_WORDS.items():
        if fungibility.get(key) == "MayStopSearch":
            fungibility[key] = word


_OLD_WORDS: Final = {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}


def _local_queue_new(made: Object) -> None:
    status = _mapping(made, "status")
    _rename(status, "flavorUsage", "flavorsUsage")
    status.pop("flavors", None)


def _local_queue_old(made: Object) -> None:
    _rename(_mapping(made, "status"), "flavorsUsage", "flavorUsage")


def _workload_new(made: Object) -> None:
    spec, status = _mapping(made, "spec"), _mapping(made, "status")
    source, name = spec.pop("priorityClassSource", None), spec.pop("priorityClassName", None)
    if source in OLD_CLASS_SOURCES and name and "priorityClassRef" not in spec:
        group, kind = OLD_CLASS_SOURCES[source]
        spec["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
    _rename(status, _MISSPELT, _SPELT)
    for place in _places(status):
        if isinstance(place.get("domains"), list):
            place["slices"] = slices_of(place.pop("domains"))


def _workload_old(made: Object) -> None:
    spec, status = _mapping(made, "spec"), _mapping(made, "status")
    ref = spec.pop("priorityClassRef", None)
    if isinstance(ref, dict):
        source = _SOURCES.get((ref.get("group"), ref.get("kind")))
        if source is not None:
            spec["priorityClassSource"], spec["priorityClassName"] = source, ref.get("name")
    _rename(status, _SPELT, _MISSPELT)
    for place in _places(status):
        if isinstance(place.get("slices"), list):
            place["domains"] = domains_of(place.pop("slices"))


_MISSPELT: Final = "accumulatedPastExexcutionTimeSeconds"
_SPELT: Final = "accumulatedPastExecutionTimeSeconds"
_SOURCES: Final[Mapping[tuple[Any, Any], str]] = MappingProxyType(
    {ref: source for source, ref in OLD_CLASS_SOURCES.items()}
)


def _places(status: Object) -> list[Object]:
    made = []
    for name in ("admission", "checkpointed"):
        assignments = _mapping(status, name).get("podSetAssignments")
        found = assignments if isinstance(assignments, list) else []
        made += [_mapping(one, "topologyAssignment") for one in found if isinstance(one, dict)]
    return made


def _admission_check_new(made: Object) -> None:
    _mapping(made, "spec").pop("retryDelayMinutes", None)


def _multikueue_cluster_new(made: Object) -> None:
    spec = _mapping(made, "spec")
    moved = {key: spec.pop(key) for key in _SOURCE_KEYS if key in spec}
    if moved and "clusterSource" not in spec:
        spec["clusterSource"] = moved


def _multikueue_cluster_old(made: Object) -> None:
    spec = _mapping(made, "spec")
    source = spec.pop("clusterSource", None)
    if isinstance(source, dict):
        spec.update({key: source[key] for key in _SOURCE_KEYS if key in source})


_SOURCE_KEYS: Final = ("kubeConfig", "clusterProfileRef")


def _same(made: Object) -> None:
    pass


_TO_NEW: Final[Mapping[str, Callable[[Object], None]]] = MappingProxyType(
    {
        "AdmissionCheck": _admission_check_new,
        "ClusterQueue": _cluster_queue_new,
        "LocalQueue": _local_queue_new,
        "MultiKueueCluster": _multikueue_cluster_new,
        "Workload": _workload_new,
    }
)
_TO_OLD: Final[Mapping[str, Callable[[Object], None]]] = MappingProxyType(
    {
        "ClusterQueue": _cluster_queue_old,
        "LocalQueue": _local_queue_old,
        "MultiKueueCluster": _multikueue_cluster_old,
        "Workload": _workload_old,
    }
)


def _plain(kind: str, made: Object, to: Version) -> None:
    (_TO_OLD if to in OLD else _TO_NEW).get(kind, _same)(made)


# -- what is kept ------------------------------------------------------------------------------


def _copied(kind: str, document: Mapping[str, Any]) -> Object:
    """A copy of the parts that a conversion changes; the rest is shared."""
    made = {name: value for name, value in document.items() if name not in _COPIED}
    made.update({name: copy.deepcopy(document[name]) for name in _COPIED if name in document})
    if "spec" in document:
        made["spec"] = _copied_spec(kind, document["spec"])
    return made


_COPIED: Final = ("metadata", "status")


def _copied_spec(kind: str, spec: Any) -> Any:
    """A copy of the spec. A Workload's is mostly pods, in which the versions do not differ: the API
    server requests a conversion at each change of one."""
    if kind == "Workload" and isinstance(spec, dict):
        return dict(spec)
    return copy.deepcopy(spec)


def _back(kind: str, made: Object, to: Version) -> object:
    there = {"spec": _copied_spec(kind, made.get("spec"))}
    _plain(kind, there, to)
    return there["spec"]


def _annotation(side: str) -> str:
    return f"sluice.dev/as-{side}"


def _take_kept(made: Object, side: str) -> str:
    """Remove and return the stored fields of the requested version; empty without any."""
    annotations = _mapping(made, "metadata", "annotations")
    kept = annotations.pop(_annotation(side), "")
    if not annotations and "annotations" in _mapping(made, "metadata"):
        del made["metadata"]["annotations"]
    return kept if isinstance(kept, str) and len(kept) <= LARGEST_KEPT else ""


def _keep(made: Object, side: str, lost: object) -> None:
    text = json.dumps(lost, sort_keys=True, separators=(",", ":"))
    if len(text) <= LARGEST_KEPT and isinstance(made.get("metadata"), dict):
        annotations = made["metadata"].get("annotations")
        if not isinstance(annotations, dict):
            annotations = made["metadata"]["annotations"] = {}
        annotations[_annotation(side)] = text


def _give_back(
    kind: str, made: Object, kept: str, to: Version, given: Version, before: object
) -> None:
    """Restore the stored fields, only if they mean the current spec: the object may have been
    changed, or the annotation forged."""
    try:
        candidate = _patched(made.get("spec"), json.loads(kept))
    except (ValueError, TypeError, RecursionError):
        return
    if _back(kind, {"spec": candidate}, given) == before:
        made["spec"] = candidate


def _difference(wanted: object, have: object) -> object | None:
    """The JSON merge patch (RFC 7396) that turns `have` into `wanted`; None: they are equal."""
    if wanted == have:
        return None
    if not isinstance(wanted, dict) or not isinstance(have, dict):
        return wanted
    patch: Object = {key: None for key in have if key not in wanted}
    for key, value in wanted.items():
        if key not in have:
            patch[key] = value
        elif (inner := _difference(value, have[key])) is not None:
            patch[key] = inner
    return patch


def _patched(have: object, patch: object, depth: int = 0) -> object:
    if not isinstance(patch, dict):
        return patch
    if depth > _DEPTH:
        raise ValueError("nested too deep")
    made = dict(have) if isinstance(have, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _patched(made.get(key), value, depth + 1)
    return made
