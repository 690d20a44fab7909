"""Cache of all pods that request or hold GPUs or belong to a group, and of PodDisruptionBudgets.
Every replica follows them, so a new leader knows all placements.

Only the fields that are read are kept; other pods are not kept at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.gpushares.extender.pod_groups import group_of
from queuecontroller.gpushares.extender.pods import HAMI, SCHEDULED
from queuecontroller.gpushares.extender.victims import Budget
from queuecontroller.scheduler.model.selectors import LabelSelector, Requirement
from sluicecommon.hami.names import ResourceNames
from sluicecommon.kubernetes.reflector import Change, Changed, Removed
from sluicecommon.pod_annotations import PLACEMENT

_SPEC: Final = (
    "nodeName",
    "priority",
    "priorityClassName",
    "activeDeadlineSeconds",
    "preemptionPolicy",
    "schedulerName",
    "schedulingGates",
    "schedulingGroup",
    "workloadRef",
    "resources",
    "terminationGracePeriodSeconds",
)
_UNBOUND: Final = ("nodeSelector", "tolerations", "affinity")
"""Fields that decide which nodes are suitable, kept until the pod is bound."""
_HEAD: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeenPod:
    uid: str
    version: int
    document: Document | None = None
    """The fields that are read; None: the pod neither requests nor holds GPUs, and has no group."""


def seen(document: Document, names: ResourceNames = HAMI) -> SeenPod:
    """Return what is kept of a pod. Raises KeyError, TypeError, AttributeError if malformed."""
    head, spec = document["metadata"], document["spec"]
    uid, text = str(head["uid"]), str(head.get("resourceVersion") or "0")
    version = int(text) if text.isascii() and text.isdigit() else 0
    containers = {
        field: [_part(one, _CONTAINER) for one in spec.get(field) or ()]
        for field in ("initContainers", "containers")
    }
    asks = any(
        names.count in (asked or {})
        for every in containers.values()
        for one in every
        for asked in (one.get("resources") or {}).values()
        if isinstance(asked, Mapping)
    )
    if not asks and PLACEMENT not in (head.get("annotations") or {}) and group_of(document) is None:
        return SeenPod(uid, version)
    status = document.get("status") or {}
    kept = _part(status, ("phase", "startTime", "nominatedNodeName"))
    if not spec.get("nodeName"):
        kept["conditions"] = [
            one for one in status.get("conditions") or () if one.get("type") == SCHEDULED
        ]
    return SeenPod(
        uid,
        version,
        {
            "metadata": _part(head, _HEAD),
            "spec": {
                **_part(spec, _SPEC),
                **({} if spec.get("nodeName") else _part(spec, _UNBOUND)),
                **containers,
            },
            "status": kept,
        },
    )


def _part(table: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


class GpuPods:
    def __init__(self) -> None:
        self._of: dict[str, SeenPod] = {}
        """Pods by UID."""
        self._uids: dict[str, str] = {}
        """UIDs by namespace and name."""
        self.on_change: Callable[[str, Document | None], None] = lambda uid, document: None
        """Called with each change: the pod's UID, and the pod as it is now."""

    def changed(self, change: Change[SeenPod]) -> None:
        match change:
            case Changed(item):
                self.take(item.key, item.value)
            case Removed(key):
                uid = self._uids.pop(key, None)
                if uid is not None and self._of.pop(uid, None) is not None:
                    self.on_change(uid, None)
            case _:
                pass

    def take(self, key: str, pod: SeenPod) -> None:
        before = self._uids.get(key)
        known = self._of.get(pod.uid)
        if known is not None and known.version >= pod.version:
            return
        if before is not None and before != pod.uid:  # The pod was recreated.
            self._of.pop(before, None)
            self.on_change(before, None)
        if pod.document is None:
            if known is not None:
                del self._of[pod.uid]
                self.on_change(pod.uid, None)
            self._uids.pop(key, None)
            return
        self._uids[key] = pod.uid
        self._of[pod.uid] = pod
        self.on_change(pod.uid, pod.document)

    def get(self, uid: str) -> Document | None:
        found = self._of.get(uid)
        return found.document if found is not None else None

    def all(self) -> Iterator[tuple[str, Document]]:
        for uid, one in list(self._of.items()):
            if one.document is not None:
                yield uid, one.document

    def __len__(self) -> int:
        return len(self._of)


class Budgets:
    def __init__(self) -> None:
        self._of: dict[str, Budget] = {}

    def changed(self, change: Change[Budget]) -> None:
        match change:
            case Changed(item):
                self._of[item.key] = item.value
            case Removed(key):
                self._of.pop(key, None)
            case _:
                pass

    def all(self) -> list[Budget]:
        return list(self._of.values())


def read_budget(document: Document) -> Budget:
    """Read a PodDisruptionBudget. Raises KeyError, TypeError, AttributeError if malformed."""
    selector = document["spec"].get("selector") or {}
    wanted = [
        Requirement(str(key), "In", (str(value),))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    wanted += [
        Requirement(str(one["key"]), str(one["operator"]), tuple(map(str, one.get("values") or ())))
        for one in selector.get("matchExpressions") or ()
    ]
    status = document.get("status") or {}
    return Budget(
        str(document["metadata"]["namespace"]),
        LabelSelector(tuple(wanted)),
        int(status.get("disruptionsAllowed") or 0),
        frozenset(status.get("disruptedPods") or ()),
    )
