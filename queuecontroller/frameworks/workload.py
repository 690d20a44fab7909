"""The Workload of a job, as a document of v1beta2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.annotations.topology import (
    GROUP_NAME,
    LAYERS,
    PREFERRED,
    REQUIRED,
    SLICE_SIZE,
    SLICE_TOPOLOGY,
    UNCONSTRAINED,
)
from queuecontroller.frameworks.patches import Document, Path, at
from queuecontroller.frameworks.slots import Runtime, Slot, slots
from queuecontroller.frameworks.table import Framework
from queuecontroller.scheduler.model.reasons import (
    PRIORITY_CLASS_NOT_FOUND,
    WORKLOAD_PRIORITY_CLASS_NOT_FOUND,
)
from sluicecommon.reader import ManifestError, Problem, Reader, shown

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
_COPIED: Final = (names.GATED_BY, names.ALLOWED_FLAVORS, names.WAIT_FOR_PODS_READY)
"""Annotations of a job that its Workload has as well."""
_COPIED_PREFIX: Final = "provreq.kueue.x-k8s.io/"
_WISHES: Final = {
    "required": REQUIRED,
    "preferred": PREFERRED,
    "podSetGroupName": GROUP_NAME,
    "podSetSliceRequiredTopology": SLICE_TOPOLOGY,
}
_MAX_LAYERS: Final = 3


WORKLOAD_CLASS: Final = "WorkloadPriorityClass"


@dataclass(frozen=True, slots=True)
class PriorityClass:
    kind: str
    """WorkloadPriorityClass or PriorityClass."""
    name: str

    @property
    def reference(self) -> dict[str, str]:
        ours = self.kind == WORKLOAD_CLASS
        group = "kueue.x-k8s.io" if ours else "scheduling.k8s.io"
        return {"group": group, "kind": self.kind, "name": self.name}


class NoPriorityClass(ManifestError):
    """Raised for a class that does not exist: without a priority there is no Workload."""

    def __init__(self, named: PriorityClass) -> None:
        super().__init__([Problem("", f'{named.kind} "{named.name}" not found')])
        ours = named.kind == WORKLOAD_CLASS
        self.reason = WORKLOAD_PRIORITY_CLASS_NOT_FOUND if ours else PRIORITY_CLASS_NOT_FOUND


def pod_sets(fw: Framework, document: Document, runtime: Runtime = None) -> list[dict[str, Any]]:
    """Pod sets of a job as a Workload's spec has them. Raises ManifestError."""
    return [pod_set_of_slot(one) for one in slots(fw, document, runtime)]


def pod_set_of_slot(slot: Slot) -> dict[str, Any]:
    """The pod set of a slot. Raises ManifestError."""
    made: dict[str, Any] = {"name": slot.name, "count": slot.count}
    if slot.min_count is not None:
        made["minCount"] = slot.min_count
    made["template"] = _with_unique_env(slot.template)
    if constraints := topology_request(slot):
        made["topologyRequest"] = constraints
    return made


def _with_unique_env(template: Document) -> Document:
    """The template with each environment variable once in a container, the last one, as Kueue has
    it: server-side apply refuses lists with a key twice, and other clients apply Workloads."""
    spec = at(template, ("spec",))
    changed: dict[str, Any] = {}
    for part in ("initContainers", "containers"):
        given = at(spec, (part,))
        if not isinstance(given, list):
            continue
        unique = [_unique_env(one) for one in given]
        if any(one is not before for one, before in zip(unique, given, strict=True)):
            changed[part] = unique
    if not changed or not isinstance(spec, Mapping):
        return template
    return {**template, "spec": {**spec, **changed}}


def _unique_env(container: Any) -> Any:
    env = at(container, ("env",))
    if not isinstance(env, list) or not all(isinstance(one, Mapping) for one in env):
        return container
    last = {str(one.get("name")): one for one in env}
    return container if len(last) == len(env) else {**container, "env": list(last.values())}


def topology_request(slot: Slot) -> dict[str, Any]:
    """The topologyRequest from annotations of the template; empty: none. Raises ManifestError."""
    at = f"pod set {slot.name}: metadata"
    reader = Reader(slot.template.get("metadata"), at)
    annotations = reader.labels("annotations")
    made: dict[str, Any] = {
        field: annotations[name] for field, name in _WISHES.items() if annotations.get(name)
    }
    if annotations.get(UNCONSTRAINED) == "true":
        made["unconstrained"] = True
    size = annotations.get(SLICE_SIZE)
    if size is not None:
        if size.isascii() and size.isdigit() and 0 < int(size[:11]) < 1 << 31:
            made["podSetSliceSize"] = int(size[:11])
        else:
            what = f"expected a whole number from 1, got {shown(size)}"
            reader.child("annotations").problem(SLICE_SIZE, what, "write a valid number, in quotes")
    if LAYERS in annotations:
        made["podsetSliceRequiredTopologyConstraints"] = _layers(reader, annotations[LAYERS])
    if reader.problems:
        raise ManifestError(reader.problems)
    return {**made, **slot.index_labels} if made else {}


def _layers(reader: Reader, text: str) -> list[dict[str, Any]]:
    """Slices within slices, as JSON; errors are added to the reader's problems."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if (
        isinstance(found, list)
        and 0 < len(found) <= _MAX_LAYERS
        and all(
            isinstance(one, dict)
            and one.keys() == {"topology", "size"}
            and isinstance(one["topology"], str)
            and type(one["size"]) is int
            and 0 < one["size"] < 1 << 31
            for one in found
        )
    ):
        return found
    example = '{"topology": LEVEL, "size": 4}'
    what = f"expected a list of at most {_MAX_LAYERS} like {example}, got {shown(text)}"
    reader.child("annotations").problem(LAYERS, what, "write one, from the widest level")
    return []


def priority_class_of(
    fw: Framework, document: Document, runtime: Runtime = None
) -> PriorityClass | None:
    """The class that decides its priority: its label's, or else the first that the job or one of
    its pod templates names. Raises ManifestError."""
    label = Reader(document).child("metadata").child("labels").raw(names.PRIORITY_CLASS)
    if isinstance(label, str) and label:
        return PriorityClass(WORKLOAD_CLASS, label)
    named = pod_class_of(fw, document, slots(fw, document, runtime))
    return PriorityClass("PriorityClass", named) if named else None


def pod_class_of(fw: Framework, document: Document, found: Sequence[Slot]) -> str:
    """The PriorityClass that the job, or the first of its pods with one, names; empty: none."""
    places: list[tuple[object, Path]] = [(document, path) for path in fw.priority_class]
    places += [(slot.template, ("spec", "priorityClassName")) for slot in found]
    for holder, path in places:
        named = at(holder, path)
        if isinstance(named, str) and named:
            return named
    return ""


def workload_name(
    fw: Framework, document: Document, *, extra: str = "", longest: int = names.LONGEST_NAME
) -> str:
    """The Workload's name. Raises ManifestError."""
    head = Reader(document).child("metadata")
    name, uid = head.required("name"), head.text("uid")
    if head.problems:
        raise ManifestError(head.problems)
    return names.workload_name_of(fw.kind, fw.group, name, uid, extra, longest)


def queue_of(document: Document) -> str:
    """The LocalQueue that the job names, by label or by the older annotation; empty: none."""
    return _named(document, names.QUEUE_NAME)


def prebuilt_of(document: Document) -> str:
    """The prebuilt Workload that the job names; empty: none."""
    return _named(document, names.PREBUILT)


def _named(document: Document, key: str) -> str:
    head = Reader(document).child("metadata")
    for part in ("labels", "annotations"):
        found = head.child(part).raw(key)
        if isinstance(found, str) and found:
            return found
    return ""


def owner_reference(fw: Framework, document: Document) -> dict[str, Any]:
    head = Reader(document).child("metadata")
    return {
        "apiVersion": str(document.get("apiVersion") or fw.api_versions[0]),
        "kind": fw.kind,
        "name": head.text("name"),
        "uid": head.text("uid"),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def workload_of(
    fw: Framework,
    document: Document,
    *,
    queue: str,
    priority: int | None = None,
    labels_to_copy: Sequence[str] = (),
    longest_name: int = names.LONGEST_NAME,
    runtime: Runtime = None,
    made: str = "",
) -> dict[str, Any]:
    """A job's Workload. `priority` is the value of its class, if known; `made` is added to what
    distinguishes the slices of an elastic job. Raises ManifestError."""
    head = Reader(document).child("metadata")
    labels, annotations = head.labels("labels"), head.labels("annotations")
    uid = head.text("uid")
    copied = {name: labels[name] for name in labels_to_copy if name in labels}
    noted = {
        name: value
        for name, value in annotations.items()
        if name in _COPIED or name.startswith(_COPIED_PREFIX)
    }
    extra = ""
    if fw.elastic and annotations.get(names.ELASTIC) == "true":  # its slices have different names
        noted[names.ELASTIC] = "true"
        extra = str(head.whole("generation", most=1 << 62) or "") + made
    metadata: dict[str, Any] = {
        "name": workload_name(fw, document, extra=extra, longest=longest_name),
        "namespace": head.text("namespace", "default"),
        "labels": {**copied, **({names.JOB_UID: uid} if uid else {})},
        "finalizers": [names.RESOURCE_IN_USE],
    }
    if noted:
        metadata["annotations"] = noted
    if uid:
        metadata["ownerReferences"] = [owner_reference(fw, document)]
    spec: dict[str, Any] = {
        "active": True,
        "podSets": pod_sets(fw, document, runtime),
    }
    if queue:
        spec["queueName"] = queue
    if (longest_s := max_execution_s(head)) is not None:
        spec["maximumExecutionTimeSeconds"] = longest_s
    if head.problems:
        raise ManifestError(head.problems)
    named = priority_class_of(fw, document, runtime)
    if named is not None:
        spec["priorityClassRef"] = named.reference
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": metadata,
        "spec": spec,
    }


def max_execution_s(head: Reader) -> int | None:
    """The time limit in the label, in seconds; an invalid one is a problem of the reader at the
    metadata."""
    text = head.labels("labels").get(names.MAX_EXEC_SECONDS)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and 0 < int(text[:11]) < 1 << 31:
        return int(text[:11])
    what = f"expected a whole number from 1, got {shown(text)}"
    head.child("labels").problem(names.MAX_EXEC_SECONDS, what, "write a valid number, in quotes")
    return None
