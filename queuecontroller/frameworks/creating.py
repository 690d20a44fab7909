"""Defaults of a queued object when it is created: its default queue, and the field or gate that
keeps its pods from running until they are admitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.annotations.pod_groups import group_of
from queuecontroller.frameworks.annotations.role_hash import role_hash
from queuecontroller.frameworks.annotations.topology import asks_for_topology
from queuecontroller.frameworks.patches import ABSENT, Change, Document, Path, at, difference
from queuecontroller.frameworks.pods import ROLE_MAIN
from queuecontroller.frameworks.reconcile import (
    ALONE,
    Setting,
    effective_queue,
    is_elastic,
    is_managed,
)
from queuecontroller.frameworks.slots import PATCHED_JOBS, RUNTIME_PATCHES, own_runtime_patch
from queuecontroller.frameworks.table import Framework, Holding, OfRuntime, RayGroups
from queuecontroller.frameworks.workload import queue_of
from sluicecommon.reader import MOST, Problem, Reader

_LABELS: Final = ("metadata", "labels")
_ANNOTATIONS: Final = ("metadata", "annotations")
_QUEUE_LABEL: Final = (*_LABELS, names.QUEUE_NAME)
_LAUNCHER_WORKS: Final = ("spec", "runLauncherAsWorker")
"""Field of an MPIJob: its launcher is worker 0, and the others are numbered from 1."""
_MPI_WORKERS: Final = ("spec", "mpiReplicaSpecs", "Worker", "template")
_OWN: Final = (
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
    "kubeflow.org/mpi-operator",
    "ray.io/kuberay-operator",
    "workload.codeflare.dev/appwrapper",
)
"""Controllers of the kinds themselves, as managedBy names them."""
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""The label by which a StatefulSet numbers its pods."""


def on_create(
    fw: Framework, document: Document, around: Setting = ALONE, is_new: bool = True
) -> dict[str, Any]:
    """The merge patch of the webhook; empty: the object is unchanged. Raises ManifestError.
    Deployments and the like pass their queue on to their pods, on every write, since any write may
    replace their templates; a class that they did not have before would replace their pods."""
    parent = at(document, (*_ANNOTATIONS, names.SUSPENDING_PARENT)) is not ABSENT
    if not (is_managed(fw, document, around) or (fw.holding is Holding.GATE and parent)):
        return {}
    change = Change(document)
    queue = effective_queue(fw, document, around)
    if queue and not queue_of(document):
        change.put(_QUEUE_LABEL, queue)
    priority = (*_LABELS, names.PRIORITY_CLASS)
    defaults = is_new and around.default_class and not parent
    if defaults and at(change.document, priority) in (ABSENT, None, ""):
        change.put(priority, names.DEFAULT_CLASS)
    match fw.holding:
        case Holding.SUSPEND:
            change.put(fw.suspend, True)
            if is_new and _runs_by_default(fw, document) and around.dispatches(queue):
                change.put(fw.managed_by, names.MULTIKUEUE)
            if is_elastic(document):
                for pod in elastic_templates(fw, change.document):
                    gate = {"name": names.ELASTIC_GATE}
                    _append(change, (*pod, "spec", "schedulingGates"), gate)
            if isinstance(fw.pods, OfRuntime) and is_new:
                _own_runtime_patch(change)
            if at(document, _LAUNCHER_WORKS) is True and _is_mapping(document, _MPI_WORKERS):
                change.put((*_MPI_WORKERS, *_ANNOTATIONS, names.INDEX_OFFSET), "1")
        case Holding.GATE:
            _hold_pod(change)
        case Holding.PODS:
            _pass_on(fw, change, queue)
    return difference(document, change.document)


def _own_runtime_patch(change: Change) -> None:
    """Add an empty entry for the admission to a TrainJob's runtimePatches, as Kueue does. A Trainer
    before 2.2 has no such field, and the API server drops it."""
    patches = at(change.document, RUNTIME_PATCHES)
    if patches is ABSENT:
        patches = []
    if not isinstance(patches, list) or own_runtime_patch(patches) is not None:
        return
    index = len(patches)
    change.put((*RUNTIME_PATCHES, index, "manager"), names.PATCHES_MANAGER)
    change.put((*RUNTIME_PATCHES, index, *PATCHED_JOBS[:-1]), {})


def _runs_by_default(fw: Framework, document: Document) -> bool:
    """True if the job states no controller but its kind's own, which some operators' definitions
    write for it: then its queue may name another cluster's."""
    return bool(fw.managed_by) and at(document, fw.managed_by) in (ABSENT, None, "", *_OWN)


def resizing(old: Document, document: Document) -> list[Problem]:
    """Problems of resizing a queued StatefulSet, or its Scale: a set of another size is another
    Workload, so it has to be removed from its queue first."""
    before, after = (at(one, ("spec", "replicas")) for one in (old, document))
    if before == after or 0 in (before, after) or ABSENT in (before, after):
        return []
    what = f"a queued StatefulSet keeps its size: {before} replicas, not {after}"
    return [Problem("spec.replicas", what, "scale it to 0 first, then to the new size")]


def _hold_pod(change: Change) -> None:
    """Add the gates, unless the pod has been scheduled already."""
    if at(change.document, ("spec", "nodeName")) not in (ABSENT, None, ""):
        return
    change.put((*_LABELS, names.MANAGED), "true")
    _append(change, ("metadata", "finalizers"), names.MANAGED)
    _append(change, ("spec", "schedulingGates"), {"name": names.ADMISSION_GATE})
    if _noted(change, names.SUSPENDING_PARENT) == "statefulset":
        _join_set(change)
    label = at(change.document, (*_ANNOTATIONS, names.GROUP_INDEX_LABEL))
    index = at(change.document, (*_LABELS, label)) if isinstance(label, str) else ABSENT
    if isinstance(index, str):
        change.put((*_LABELS, names.GROUP_INDEX), index)
    if asks_for_topology(change.document):
        _append(change, ("spec", "schedulingGates"), {"name": names.TOPOLOGY_GATE})
    if not _noted(change, names.ROLE_HASH):
        change.put((*_ANNOTATIONS, names.ROLE_HASH), role_hash(change.document))


def _is_mapping(document: Document, path: Path) -> bool:
    return isinstance(at(document, path), Mapping)


def _noted(change: Change, name: str) -> str:
    found = at(change.document, (*_ANNOTATIONS, name))
    return found if isinstance(found, str) else ""


def _append(change: Change, path: Path, value: Any) -> None:
    known = at(change.document, path)
    known = known if isinstance(known, list) else []
    if value not in known:
        change.put(path, [*known, value])


def _pass_on(fw: Framework, change: Change, queue: str) -> None:
    for pod in _templates(fw, change.document):
        change.put((*pod, *_ANNOTATIONS, names.SUSPENDING_PARENT), fw.name)
        if fw.kind == "LeaderWorkerSet":
            continue  # its pods get their group when they have their number
        if queue:
            change.put((*pod, *_QUEUE_LABEL), queue)
        priority = at(change.document, (*_LABELS, names.PRIORITY_CLASS))
        if isinstance(priority, str):
            change.put((*pod, *_LABELS, names.PRIORITY_CLASS), priority)
        if fw.kind == "StatefulSet":
            _as_group(fw, change, pod)


def _templates(fw: Framework, document: Document) -> list[Path]:
    if fw.kind != "LeaderWorkerSet":
        return [("spec", "template")]
    of: Path = ("spec", "leaderWorkerTemplate")
    leader = (*of, "leaderTemplate")
    return [(*of, "workerTemplate"), *([leader] if at(document, leader) is not ABSENT else [])]


def elastic_templates(fw: Framework, document: Document) -> list[Path]:
    """Paths of the pod templates whose pods are gated one by one."""
    if not isinstance(fw.pods, RayGroups):
        return [("spec", "template")]
    groups = at(document, (*fw.pods.at, "workerGroupSpecs"))
    count = len(groups) if isinstance(groups, list) else 0
    workers: list[Path] = [(*fw.pods.at, "workerGroupSpecs", i, "template") for i in range(count)]
    return [(*fw.pods.at, "headGroupSpec", "template"), *workers]


def group_of_set(name: str, uid: str = "") -> str:
    """The name of a StatefulSet's pod group, and of its Workload. Sets that were created before
    their UID was part of it have it in their pod template, without a UID."""
    return names.workload_name_of("StatefulSet", "apps", name, uid, longest=names.LONGEST_LABEL)


def _join_set(change: Change) -> None:
    """Add a pod to the group of the StatefulSet that controls it: the set's UID is not known yet
    when the webhook gets the set itself."""
    owners = at(change.document, ("metadata", "ownerReferences"))
    for one in owners if isinstance(owners, list) else ():
        if isinstance(one, Mapping) and one.get("controller") and one.get("kind") == "StatefulSet":
            if not group_of(change.document):
                group = group_of_set(str(one.get("name")), str(one.get("uid")))
                change.put((*_LABELS, names.GROUP_NAME), group)
            return


def _as_group(fw: Framework, change: Change, pod: Path) -> None:
    """Make the pods of a StatefulSet one group, which is admitted once its first pod exists: the
    next one is only created when the one before runs."""
    replicas = Reader(change.document).child("spec").whole("replicas", 1, least=0, most=MOST)
    for annotation, value in (
        (names.GROUP_TOTAL, str(replicas)),
        (names.GROUP_FAST, "true"),
        (names.GROUP_SERVING, "true"),
        (names.ROLE_HASH, ROLE_MAIN),
        (names.GROUP_INDEX_LABEL, POD_INDEX),
    ):
        change.put((*pod, *_ANNOTATIONS, annotation), value)
