"""Copies in a worker of a Workload and its job, and what is copied back: documents only, no I/O.

Everything that comes from a worker is read here, and bounded, before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import DISPATCHED, KINDS, kind_of
from queuecontroller.cluster.cache.kinds import IN_USE, WORKLOADS
from queuecontroller.cluster.cache.multikueue import PREEMPTION_GATE
from queuecontroller.cluster.cache.objects import (
    Document,
    annotations_of,
    covers,
    labels_of,
    pruned,
)
from queuecontroller.frameworks import Framework
from queuecontroller.frameworks.names import BEFORE_START, JOB_UID, ORIGIN, PREBUILT
from queuecontroller.frameworks.patches import ABSENT, Change, at, difference
from queuecontroller.frameworks.starting import before_start
from sluicecommon.kubernetes.resources import Resource

LONGEST: Final = 1024
"""Longest message in characters, as in Kueue."""
MAX_CONDITIONS: Final = 32
DEEPEST: Final = 64
"""Levels of nesting of a worker's object."""
MAX_VALUES: Final = 200_000
_CONFIG: Final = "kubectl.kubernetes.io/last-applied-configuration"
_REASON: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
_JOB_LABELS: Final = (
    *("controller-uid", "job-name"),
    *("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
)
"""Labels that the API server gives the pods of a Job, with the UID of this cluster."""
_OPEN: Final = "Open"
_COUNTERS: Final = ("succeeded", "failed")
"""Numbers in a Job's status that the API server does not let decrease."""


def job_owner(workload: Document) -> Mapping[str, Any]:
    """Return the owner reference to the job; empty if there is none."""
    owners = workload["metadata"].get("ownerReferences") or ()
    return next((one for one in owners if one.get("controller")), next(iter(owners), {}))


def kind_of_job(workload: Document) -> Resource | None:
    """Return the kind of the Workload's job; None if jobs of that kind are not dispatched."""
    kind = kind_of(job_owner(workload))
    return kind if kind in DISPATCHED else None


def managed_by(framework: Framework, job: Document) -> str:
    found = at(job, framework.managed_by)
    return found if isinstance(found, str) else ""


# -- copies that are sent --------------------------------------------------------------------------


def workload_copy(workload: Document, origin: str, *, gated: bool) -> dict[str, Any]:
    """Make the Workload to be created in a worker; it has no owner until its job is there.
    `gated`: it preempts nobody there before its gate is opened."""
    gates = {"preemptionGates": [{"name": PREEMPTION_GATE}]} if gated else {}
    head = workload["metadata"]
    labels = {name: one for name, one in labels_of(workload).items() if name != JOB_UID}
    annotations = {name: one for name, one in annotations_of(workload).items() if name != _CONFIG}
    return {
        "apiVersion": WORKLOADS.api_version,
        "kind": WORKLOADS.kind,
        "metadata": {
            "name": head["name"],
            "namespace": head["namespace"],
            "labels": {**labels, ORIGIN: origin},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {**_spec_of(workload), **gates},
    }


def _spec_of(workload: Document) -> dict[str, Any]:
    """Return the spec without preemption gates, which each cluster has of its own."""
    spec = workload.get("spec") or {}
    return {name: one for name, one in spec.items() if name != "preemptionGates"}


def is_in_step(workload: Document, copy: Document) -> bool:
    """Return True if a copy has the pods of the Workload; its priority may be another."""
    mine, there = _spec_of(workload), copy.get("spec") or {}
    return all(
        covers(there.get(name), mine.get(name))
        for name in ("podSets", "queueName")
        if mine.get(name) is not None
    )


def priority_patch(workload: Document, copy: Document) -> dict[str, Any]:
    """Return the patch that gives a copy the Workload's priority; empty if it has it."""
    mine, there = workload.get("spec") or {}, copy.get("spec") or {}
    wanted = {
        name: mine.get(name)
        for name in ("priorityClassRef", "priority")
        if mine.get(name) != there.get(name)
    }
    return {"spec": wanted} if wanted else {}


def gate_opened_at(copy: Document) -> str:
    """Return since when a copy may preempt, as far as its manager decides; "" if it may not."""
    for one in copy["status"]["preemptionGates"]:
        if (one["name"], one["position"]) == (PREEMPTION_GATE, _OPEN):
            return str(one["lastTransitionTime"])
    return ""


def open_gate_patch(copy: Document, at: str) -> dict[str, Any]:
    """Return the patch of the status that opens a copy's gate; others stay as they are."""
    others = [one for one in copy["status"]["preemptionGates"] if one["name"] != PREEMPTION_GATE]
    mine = {"name": PREEMPTION_GATE, "position": _OPEN, "lastTransitionTime": at}
    return {"status": {"preemptionGates": [*others, mine]}}


def job_copy(kind: Resource, job: Document, workload: str, origin: str) -> dict[str, Any]:
    """Make the job to be created in a worker: as it was before it was started here, suspended, and
    bound to its Workload there. Raises ManifestError."""
    framework = KINDS[kind]
    change = Change(before_start(job))
    for path in (framework.managed_by, ("spec", "selector") if kind.kind == "Job" else ()):
        if path and at(change.document, path) is not ABSENT:
            del change.own(path[:-1])[path[-1]]
    if kind.kind == "Job" and at(change.document, ("spec", "manualSelector")) is not ABSENT:
        del change.own(("spec",))["manualSelector"]
    labels = at(change.document, ("spec", "template", "metadata", "labels"))
    if kind.kind == "Job" and isinstance(labels, Mapping):
        kept = {name: one for name, one in labels.items() if name not in _JOB_LABELS}
        change.put(("spec", "template", "metadata", "labels"), kept)
    change.put(framework.suspend, True)
    document: dict[str, Any] = change.document
    head = job["metadata"]
    annotations = {
        name: one
        for name, one in annotations_of(job).items()
        if name not in (_CONFIG, BEFORE_START)
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": head["name"],
            "namespace": head["namespace"],
            "labels": {**labels_of(job), PREBUILT: workload, ORIGIN: origin},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": document["spec"],
    }


# -- what comes back -------------------------------------------------------------------------------


def read_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read a Workload of a worker: only fields that are used, of the types that they should have.

    Raises ValueError, KeyError, TypeError, AttributeError.
    """
    found = _bounded(document)
    spec, status = found.get("spec"), found.get("status") or {}
    conditions, gates = (status.get(name) or [] for name in ("conditions", "preemptionGates"))
    if not isinstance(spec, dict):
        raise ValueError("spec is malformed")
    for name, given in (("conditions", conditions), ("preemption gates", gates)):
        if not isinstance(given, list) or len(given) > MAX_CONDITIONS:
            raise ValueError(f"{name} are malformed, or more than {MAX_CONDITIONS}")
    return {
        "metadata": _head(found),
        "spec": {key: spec.get(key) for key in ("podSets", "queueName", *_PRIORITY)},
        "status": {
            "conditions": [_condition(one) for one in conditions],
            "preemptionGates": [
                {key: _text(one[key]) for key in ("name", "position", "lastTransitionTime")}
                for one in gates
            ],
        },
    }


_PRIORITY: Final = ("priorityClassRef", "priority")


def read_job(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read a job of a worker: its metadata and its status. Raises like `read_copy`."""
    found = _bounded(document)
    status = found.get("status") or {}
    if not isinstance(status, dict):
        raise ValueError("the status is not an object")
    return {"metadata": _head(found), "status": status}


def _bounded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document without managedFields. Raises ValueError for one that is nested too deep
    or has too many values: what compares documents calls itself for each level."""
    left: list[tuple[object, int]] = [(document, 0)]
    count = 0
    while left:
        value, depth = left.pop()
        inner = value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list):
            continue
        count += len(value)
        if depth > DEEPEST or count > MAX_VALUES:
            raise ValueError("nested too deep, or too many values")
        left.extend((one, depth + 1) for one in inner)  # type: ignore[attr-defined]
    return pruned(document)


def _head(document: Document) -> dict[str, Any]:
    head = document["metadata"]
    made = {key: _text(head[key]) for key in ("name", "namespace", "uid", "resourceVersion")}
    labels = head.get("labels") or {}
    finalizers = head.get("finalizers") or []
    if not isinstance(labels, dict) or not isinstance(finalizers, list):
        raise ValueError("metadata is malformed")
    return {
        **made,
        "labels": {str(name): str(one) for name, one in labels.items()},
        "finalizers": [str(one) for one in finalizers],
        **({"deletionTimestamp": "set"} if head.get("deletionTimestamp") else {}),
        "ownerReferences": [
            {key: one.get(key) for key in ("apiVersion", "kind", "name", "uid", "controller")}
            for one in head.get("ownerReferences") or ()
        ],
    }


def _condition(one: Any) -> dict[str, str]:
    made = {
        key: _text(one.get(key) or "")
        for key in ("type", "status", "reason", "message", "lastTransitionTime")
    }
    if _REASON.fullmatch(made["reason"]) is None:
        made["reason"] = "Unknown"
    return {**made, "message": made["message"][:LONGEST]}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def key_of_job(job: Document) -> str:
    """Return the key of the Workload that a job in a worker is bound to; "" if to none."""
    name = labels_of(job).get(PREBUILT)
    return f"{job['metadata']['namespace']}/{name}" if name else ""


def status_patch(kind: Resource, job: Document, there: Document) -> dict[str, Any]:
    """Return the patch that gives a job the status of its copy in a worker; empty if it has it.

    Raises ManifestError.
    """
    wanted: dict[str, Any] = dict(there.get("status") or {})
    mine = job.get("status") or {}
    if kind.kind == "Job" and "completionTime" not in wanted:
        # A copy in another worker begins with 0, and the API server would refuse that.
        for name in _COUNTERS:
            before = mine.get(name)
            if isinstance(before, int) and before > (wanted.get(name) or 0):
                wanted[name] = before
    return {"status": made} if (made := difference(mine, wanted)) else {}


def stopped_patch(kind: Resource, job: Document) -> dict[str, Any]:
    """Return the patch that removes from the status of a stopped Job the pods that another cluster
    had; empty if there are none. Other kinds have a status of any form: it stays."""
    status = job.get("status") or {}
    if kind.kind != "Job":
        return {}
    gone = [name for name in ("active", "ready", "terminating") if status.get(name)]
    return {"status": dict.fromkeys(gone)} if gone else {}


def without_finalizer(copy: Document) -> dict[str, Any]:
    """Return the patch that lets a copy be deleted; empty if nothing holds it."""
    finalizers = copy["metadata"].get("finalizers") or []
    if IN_USE not in finalizers:
        return {}
    left = [one for one in finalizers if one != IN_USE]
    return {"metadata": {"finalizers": left or None}}
