"""LeaderWorkerSet: each of its groups, a leader with its workers, has its own Workload.

The Workloads are made for the set before there are pods; the pods of a group find theirs by the
number that their controller assigns, and are from then on a group like any other (pods.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.actions import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    Refuse,
    UpdateWorkload,
    refusal,
)
from queuecontroller.frameworks.annotations.gates import fewer_gates
from queuecontroller.frameworks.patches import (
    ABSENT,
    TOO_DEEP,
    Change,
    Document,
    Path,
    at,
    difference,
)
from queuecontroller.frameworks.reconcile import ALONE, Setting, effective_queue, is_managed
from queuecontroller.frameworks.slots import Slot, template_slot
from queuecontroller.frameworks.table import Framework, framework_named
from queuecontroller.frameworks.workload import (
    owner_reference,
    pod_set_of_slot,
    queue_of,
    workload_of,
)
from sluicecommon.reader import ManifestError, Reader

SET_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LEADER_NAME: Final = "leaderworkerset.sigs.k8s.io/leader-name"
"""Annotation of the workers."""
COMPONENT_INDEX: Final = "kueue.x-k8s.io/component-workload-index"
MAX_GROUPS: Final = 10_000
_OF: Final = ("spec", "leaderWorkerTemplate")


def _framework() -> Framework:
    fw = framework_named("leaderworkerset.x-k8s.io/leaderworkerset")
    assert fw is not None
    return fw


SET: Final = _framework()


def group_pod_sets(document: Document) -> list[dict[str, Any]]:
    """Pod sets of one group: a leader and its workers, or equal pods. Raises ManifestError."""
    reader = Reader(document)
    of = reader.child("spec").child("leaderWorkerTemplate")
    size = of.whole("size", 1, least=1)
    found: list[Slot] = []
    workers = "main"
    if of.has("leaderTemplate"):
        workers, size = "worker", size - 1
        found.append(template_slot(of.child("leaderTemplate"), (*_OF, "leaderTemplate"), "leader"))
    found.append(
        template_slot(
            of.child("workerTemplate"),
            (*_OF, "workerTemplate"),
            workers,
            size,
            {"podIndexLabel": WORKER_INDEX},
        )
    )
    if reader.problems:
        raise ManifestError(reader.problems)
    return [pod_set_of_slot(one) for one in found if one.count]


def group_workload_name(document: Document, index: int, longest: int = names.LONGEST_LABEL) -> str:
    """The Workload's name, which is also a label's value of its pods. Raises ManifestError."""
    head = Reader(document).child("metadata")
    name, uid = head.required("name"), head.text("uid")
    if head.problems:
        raise ManifestError(head.problems)
    longest = min(longest, names.LONGEST_LABEL)
    return names.workload_name_of(SET.kind, SET.group, f"{name}-{index}", uid, "", longest)


def reconcile_set(
    document: Document | None, workloads: Sequence[Document], around: Setting = ALONE
) -> list[tuple[Document | None, Action]]:
    """Actions that create Workloads for new groups and delete those of removed groups, each with
    its Workload. Never raises."""
    if document is None:
        return [(one, DeleteWorkload("its LeaderWorkerSet is gone")) for one in workloads]
    try:
        return _reconcile(document, workloads, around)
    except ManifestError as error:
        return [(None, refusal(error))]
    except RecursionError:
        return [(None, Refuse((TOO_DEEP,)))]


def _reconcile(
    document: Document, workloads: Sequence[Document], around: Setting
) -> list[tuple[Document | None, Action]]:
    if at(document, ("metadata", "deletionTimestamp")) not in (ABSENT, None):
        return []
    if not is_managed(SET, document, around):
        return []
    groups = _groups(document)
    wanted = {group_workload_name(document, i, around.longest_name): i for i in range(groups)}
    there = {str(at(one, ("metadata", "name"))): one for one in workloads}
    made: list[tuple[Document | None, Action]] = [
        (one, DeleteWorkload("its group does not exist any more"))
        for name, one in there.items()
        if name not in wanted
    ]
    sets = group_pod_sets(document)
    for name, index in wanted.items():
        if name not in there:
            made.append((None, CreateWorkload(_workload(document, name, index, sets, around))))
        elif patch := fewer_gates(document, there[name]):
            change = UpdateWorkload(patch, "an admission gate was removed")
            made.append((there[name], change))
    return made


def _groups(document: Document) -> int:
    """Number of groups, with the additional ones during an update."""
    reader = Reader(document)
    spec, status = reader.child("spec"), reader.child("status")
    replicas = spec.whole("replicas", 1, least=0, most=MAX_GROUPS)
    there = status.whole("replicas", 0, least=0, most=MAX_GROUPS)
    updated = status.whole("updatedReplicas", 0, least=0)
    rolling = spec.child("rolloutStrategy").child("rollingUpdateConfiguration")
    surge = rolling.raw("maxSurge") not in (None, 0, "0", "0%")
    if reader.problems:
        raise ManifestError(reader.problems)
    return max(replicas, there) if surge and updated < replicas else replicas


def _workload(
    document: Document,
    name: str,
    index: int,
    sets: Sequence[dict[str, Any]],
    around: Setting,
) -> dict[str, Any]:
    made = workload_of(
        SET,
        document,
        queue=effective_queue(SET, document, around),
        priority=around.priority(SET, document),
        labels_to_copy=around.labels_to_copy,
    )
    head = made["metadata"]
    head["name"] = name
    head.setdefault("annotations", {}).update({COMPONENT_INDEX: str(index), names.IS_GROUP: "true"})
    owner = owner_reference(SET, document)
    # The reference is not a controller reference, since the pods of the group own the Workload,
    # too.
    head["ownerReferences"] = [{key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}]
    made["spec"]["podSets"] = list(sets)
    return made


def join_group_patch(document: Document, pod: Document) -> dict[str, Any]:
    """Patch that adds a pod of the set to its group; empty: it is in it, or has no number yet. The
    queue of the set counts, not one that its template names. Raises ManifestError."""
    index = at(pod, ("metadata", "labels", GROUP_INDEX))
    queue = queue_of(document)
    if not isinstance(index, str) or not (index.isascii() and index.isdigit()) or not queue:
        return {}
    if len(index) > len(str(MAX_GROUPS)):
        return {}
    sizes = {one["name"]: one["count"] for one in group_pod_sets(document)}
    role = "main"
    if "main" not in sizes:
        worker = at(pod, ("metadata", "annotations", LEADER_NAME)) is not ABSENT
        role = "worker" if worker else "leader"
    name = group_workload_name(document, int(index))
    if at(pod, ("metadata", "labels", names.GROUP_NAME)) == name:
        return {}
    change = Change(pod)
    labels: Path = ("metadata", "labels")
    for key, value in (
        (names.MANAGED, "true"),
        (names.QUEUE_NAME, queue),
        (names.GROUP_NAME, name),
        (names.PREBUILT, name),
    ):
        change.put((*labels, key), value)
    for key, value in (
        (names.GROUP_TOTAL, str(sum(sizes.values()))),
        (names.GROUP_SERVING, "true"),
        (names.ROLE_HASH, role),
    ):
        change.put(("metadata", "annotations", key), value)
    return difference(pod, change.document)
