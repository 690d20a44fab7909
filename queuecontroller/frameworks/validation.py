"""Validation of a job on create and update, by the same table that manages it.

What would leave a queued job pending for ever, and what would let a running one escape its quota,
is refused when it is written. On an update only new problems are reported: an object that was
stored before a rule existed must still lose its finalizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.annotations.gates import gate_problems
from queuecontroller.frameworks.annotations.ready_timeouts import timeout_problems
from queuecontroller.frameworks.annotations.topology import spread_problems, topology_problems
from queuecontroller.frameworks.creating import elastic_templates, resizing
from queuecontroller.frameworks.patches import ABSENT, Document, Path, at
from queuecontroller.frameworks.reconcile import ALONE, Setting, is_elastic, is_managed
from queuecontroller.frameworks.slots import Slot, slots
from queuecontroller.frameworks.starting import is_suspended
from queuecontroller.frameworks.table import Framework, Holding, OfRuntime, RayGroups
from queuecontroller.frameworks.workload import max_execution_s, queue_of
from sluicecommon.reader import ManifestError, Problem, Reader, shown

_NAME: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_TOTAL: Final = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_NAMED: Final = (names.QUEUE_NAME, names.PREBUILT, names.GROUP_NAME)
"""Labels that name an object."""
_FIXED_LABELS: Final = (names.QUEUE_NAME, names.PREBUILT, names.MAX_EXEC_SECONDS)
"""Labels that may not change while the job runs."""
_FIXED_ANNOTATIONS: Final = (names.MIN_PARALLELISM, names.ELASTIC, names.WAIT_FOR_PODS_READY)
_IMMUTABLE: Final = "cannot be changed while it runs"
_SUSPEND: Final = "suspend it first"


def job_problems(
    fw: Framework, document: Document, old: Document | None, around: Setting = ALONE
) -> list[Problem]:
    """Problems for which a job is refused; `old` is the object that it replaces, None for a new
    one. A job that is not queued has none."""
    managed = is_managed(fw, document, around)
    found = list(_own_problems(fw, document, around)) if managed else []
    if not managed and queue_of(document) and isinstance(fw.pods, RayGroups):
        found = list(_two_clusters(document, fw.pods))
    if old is None:
        if managed:
            found += gate_problems(_annotation(document, names.GATED_BY), None)
        return found
    if managed:
        known = set(_own_problems(fw, old, around))
        found = [one for one in found if one not in known]
        if fw.holding is Holding.GATE:
            found += _pod_changes(document, old)
        before = _annotation(old, names.GATED_BY)
        if (after := _annotation(document, names.GATED_BY)) != before:
            found += gate_problems(after, before or "")
    if managed or is_managed(fw, old, around):
        found += _changes(fw, document, old, around)
    return found


def _own_problems(fw: Framework, document: Document, around: Setting) -> Iterator[Problem]:
    """Problems of a job by itself."""
    runtime = around.runtime
    if around.longest_ready_s is not None:
        timeouts = _annotation(document, names.WAIT_FOR_PODS_READY)
        yield from timeout_problems(timeouts, around.longest_ready_s)
    for key in _NAMED:
        value = _label(document, key)
        if value and (len(value) > names.LONGEST_NAME or not _NAME.fullmatch(value)):
            what = f"{shown(value)} is not a name: lowercase letters, digits, '-' and '.'"
            yield Problem(f"metadata.labels[{key}]", what, "write the name of an object")
    head = Reader(document).child("metadata")
    max_execution_s(head)
    yield from head.problems
    if isinstance(fw.pods, RayGroups):
        yield from _ray_problems(fw, document, fw.pods)
        if fw.kind == "RayService" and around.fixed_upgrades and not is_elastic(document):
            yield from _upgrade_problems(document)
    if fw.kind == "SparkApplication":
        yield from _allocation_problems(document)
    if fw.kind == "Job":
        yield from _parallelism_problems(document)
    if fw.holding is Holding.GATE:
        yield from _pod_problems(document)
    if isinstance(fw.pods, OfRuntime) and runtime is None:
        return
    try:
        found = slots(fw, document, runtime)
    except ManifestError as error:
        # All other errors are the operator's to judge; the controller records them as an event.
        spark = fw.kind == "SparkApplication"
        yield from (
            one
            for one in error.problems
            if names.PREFIX in one.field or (spark and "emory" in one.field)
        )
        return
    for slot in found:
        count = slot.count if fw.holding is Holding.SUSPEND else None
        yield from topology_problems(slot.template, _place(slot), count, slot.min_count)
    if around.spreads:
        yield from spread_problems((_place(slot), slot.template) for slot in found)


def _place(slot: Slot) -> str:
    return f"pod set {slot.name}: metadata.annotations"


def _ray_problems(fw: Framework, document: Document, groups: RayGroups) -> Iterator[Problem]:
    cluster = at(document, groups.at)
    head = at(cluster, ("headGroupSpec", "template", "spec", "containers"))
    if isinstance(cluster, Mapping) and head in (ABSENT, None, []):
        where = ".".join(map(str, (*groups.at, "headGroupSpec.template.spec.containers")))
        yield Problem(where, "the head has no container", "add one")
    workers = at(cluster, ("workerGroupSpecs",))
    for i, group in enumerate(workers if isinstance(workers, list) else ()):
        if at(group, ("groupName",)) == "head":
            where = ".".join(map(str, (*groups.at, f"workerGroupSpecs[{i}].groupName")))
            yield Problem(where, "'head' is the pod set of the head", "use another name")
    autoscales = at(cluster, ("enableInTreeAutoscaling",)) is True
    if fw.elastic and autoscales and not is_elastic(document):
        where = ".".join(map(str, (*groups.at, "enableInTreeAutoscaling")))
        what = "a queued cluster is scaled only if it is elastic"
        fix = f"set the annotation {names.ELASTIC} to true"
        yield Problem(where, what, fix)
    if fw.kind == "RayJob" and at(document, ("spec", "shutdownAfterJobFinishes")) is not True:
        what = "a queued RayJob has to delete its cluster when it has finished"
        yield Problem("spec.shutdownAfterJobFinishes", what, "set it to true")


def _upgrade_problems(document: Document) -> Iterator[Problem]:
    """Problems of a RayService whose upgrade would start a second cluster, beside its quota."""
    strategy = at(document, ("spec", "upgradeStrategy", "type"))
    if strategy != "None":
        what = "an upgrade would start a second cluster, which has no quota"
        fix = f"write None, or set the annotation {names.ELASTIC} to true"
        yield Problem("spec.upgradeStrategy.type", what, fix)


def _two_clusters(document: Document, groups: RayGroups) -> Iterator[Problem]:
    """Problems of a RayJob that names an existing cluster, and so is not queued."""
    selector = at(document, ("spec", "clusterSelector"))
    if selector not in (ABSENT, None, {}) and isinstance(at(document, groups.at), Mapping):
        what = "a queued RayJob has a cluster of its own"
        yield Problem("spec.clusterSelector", what, "remove it, or spec.rayClusterSpec")


def _allocation_problems(document: Document) -> Iterator[Problem]:
    """Problems of a SparkApplication whose number of executors changes while it runs."""
    dynamic = at(document, ("spec", "dynamicAllocation"))
    if at(dynamic, ("enabled",)) is not True:
        return
    if _annotation(document, names.ELASTIC) != "true":
        what = "a queued application gets more executors only if it is elastic"
        fix = f"set the annotation {names.ELASTIC} to true"
        yield Problem("spec.dynamicAllocation.enabled", what, fix)
    elif type(at(dynamic, ("maxExecutors",))) is not int:
        what = "is missing: as many executors count for its quota"
        yield Problem("spec.dynamicAllocation.maxExecutors", what, "add it")


def _parallelism_problems(document: Document) -> Iterator[Problem]:
    """Problems of a Job whose parallelism may be reduced, or is followed by its completions."""
    parallelism, completions = (
        1 if found in (ABSENT, None) else found
        for found in (at(document, ("spec", one)) for one in ("parallelism", "completions"))
    )
    if type(parallelism) is not int or type(completions) is not int:
        return  # The API server refuses it.
    without = at(document, ("spec", "completions")) in (ABSENT, None)
    pods = parallelism if without else min(parallelism, completions)
    least = _annotation(document, names.MIN_PARALLELISM)
    if least == str(pods):
        what = f"{least} is the number of its pods, and has to be less"
        yield Problem(f"metadata.annotations[{names.MIN_PARALLELISM}]", what, "remove it")
    follow = _annotation(document, names.COMPLETIONS_FOLLOW)
    where = f"metadata.annotations[{names.COMPLETIONS_FOLLOW}]"
    if follow not in ("", "true", "false"):
        yield Problem(where, f"{shown(follow)} is not true or false", "write one of them")
    if follow != "true":
        return
    if at(document, ("spec", "completionMode")) != "Indexed":
        yield Problem(where, "is for Indexed Jobs only", "remove it")
    if parallelism != completions:
        what = f"is {completions}, and parallelism {parallelism}"
        yield Problem("spec.completions", what, f"make them equal, or remove {where}")


def _pod_problems(document: Document) -> Iterator[Problem]:
    """Problems of the labels and annotations by which pods are queued one by one or as a group."""
    if _label(document, names.MANAGED) not in ("", "true"):
        what = f"{shown(_label(document, names.MANAGED))} is not true"
        yield Problem(f"metadata.labels[{names.MANAGED}]", what, "leave it to the queue")
    if _annotation(document, names.SUSPENDING_PARENT):
        return  # Its group is completed when it is created, from its owner.
    group, total = _label(document, names.GROUP_NAME), _annotation(document, names.GROUP_TOTAL)
    if total and not _TOTAL.fullmatch(total):
        what = f"{shown(total)} is not a whole number from 1"
        yield Problem(f"metadata.annotations[{names.GROUP_TOTAL}]", what, "write the pods' number")
    if bool(group) != bool(total):
        lacking = f"labels[{names.GROUP_NAME}]" if total else f"annotations[{names.GROUP_TOTAL}]"
        yield Problem(f"metadata.{lacking}", "is missing: a group has both", "add it")


def _pod_changes(document: Document, old: Document) -> Iterator[Problem]:
    """Changes by which a queued pod would escape its quota or its group."""
    for key in (names.MANAGED, names.GROUP_NAME):
        before = _label(old, key)
        if before and before != _label(document, key):
            yield Problem(f"metadata.labels[{key}]", "cannot be changed", "delete the pod")
    retriable = [_annotation(one, names.RETRIABLE) for one in (old, document)]
    if retriable[0] == "false" and retriable[1] != "false":
        what = "a group that is not retriable stays so"
        yield Problem(f"metadata.annotations[{names.RETRIABLE}]", what, "create another group")


def _changes(
    fw: Framework, document: Document, old: Document, around: Setting
) -> Iterator[Problem]:
    """Changes that a queued job may not make while it runs."""
    if fw.holding is Holding.GATE:
        return
    before, after = queue_of(old), queue_of(document)
    if fw.holding is Holding.SUSPEND:
        if not is_suspended(fw, document):
            yield from _fixed(document, old)
            if is_elastic(document) and is_elastic(old):
                yield from _ungated(fw, document, old)
        elif before and not after and around.default_queue:
            what = "cannot be removed where there is a LocalQueue named default"
            yield Problem(f"metadata.labels[{names.QUEUE_NAME}]", what, "name another queue")
        return
    ready = at(old, ("status", "readyReplicas"))
    if before and before != after and (not after or (type(ready) is int and ready > 0)):
        what = "it cannot be taken from its queue" if not after else _IMMUTABLE
        yield Problem(f"metadata.labels[{names.QUEUE_NAME}]", what, "scale it to 0 first")
    if fw.kind == "StatefulSet" and after:
        yield from resizing(old, document)
    if fw.kind == "LeaderWorkerSet" and before and after:
        size = ("spec", "leaderWorkerTemplate", "size")
        if at(old, size) != at(document, size):
            what = "the groups of a queued LeaderWorkerSet keep their size"
            yield Problem(".".join(size), what, "create another LeaderWorkerSet")


def _fixed(document: Document, old: Document) -> Iterator[Problem]:
    for key in _FIXED_LABELS:
        before = _label(old, key)
        joins = key == names.QUEUE_NAME and not before  # It is suspended a moment later.
        if before != _label(document, key) and not joins:
            yield Problem(f"metadata.labels[{key}]", _IMMUTABLE, _SUSPEND)
    for key in _FIXED_ANNOTATIONS:
        if _annotation(old, key) != _annotation(document, key):
            yield Problem(f"metadata.annotations[{key}]", _IMMUTABLE, _SUSPEND)
    known, wanted = (_label(one, names.PRIORITY_CLASS) for one in (old, document))
    if bool(known) != bool(wanted):
        what = "cannot be " + ("removed" if known else "added") + " while it runs"
        yield Problem(f"metadata.labels[{names.PRIORITY_CLASS}]", what, _SUSPEND)


def _ungated(fw: Framework, document: Document, old: Document) -> Iterator[Problem]:
    """Pod templates of an elastic job that have lost the gate by which their pods wait for quota,
    as by a written list of groups that replaces the one that the job was started with."""
    if not all(_has_gate(old, pod) for pod in elastic_templates(fw, old)):
        return
    for pod in elastic_templates(fw, document):
        if not _has_gate(document, pod):
            where = ".".join(map(str, (*pod, "spec", "schedulingGates")))
            what = f"has no gate {names.ELASTIC_GATE}: its pods would run without quota"
            yield Problem(where, what, "keep the gate")


def _has_gate(document: Document, pod: Path) -> bool:
    gates = at(document, (*pod, "spec", "schedulingGates"))
    return isinstance(gates, list) and {"name": names.ELASTIC_GATE} in gates


def _label(document: Document, key: str) -> str:
    found: Any = at(document, ("metadata", "labels", key))
    return found if isinstance(found, str) else ""


def _annotation(document: Document, key: str) -> str:
    found: Any = at(document, ("metadata", "annotations", key))
    return found if isinstance(found, str) else ""
