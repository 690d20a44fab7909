"""Pods that are queued by themselves, alone or as a group with one Workload.

A pod cannot be suspended: it is gated when it is created, started by removing the gate, and stopped
by deleting it. A finalizer keeps a pod that has ended until it is counted, pods of an evicted group
until others replace them. The file is long: single pods and groups share each of these steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.actions import (
    CreateWorkload,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    HoldWorkload,
    MovePod,
    PodAction,
    Refuse,
    ReleasePod,
    ReleaseQuota,
    ResumeWorkload,
    SetPodsReady,
    StartPod,
    UpdateReclaimable,
    UpdateWorkload,
    WaitForReplacements,
    refusal,
)
from queuecontroller.frameworks.annotations.gates import fewer_gates
from queuecontroller.frameworks.annotations.pod_groups import (
    group_of,
    is_unretriable,
    may_lack,
    role_of,
    text_at,
    total_of,
)
from queuecontroller.frameworks.comparing import (
    condition_of,
    holds,
    is_list,
    pod_sets_of,
    reason_of,
    reclaimable_of,
)
from queuecontroller.frameworks.patches import ABSENT, TOO_DEEP, Document, at
from queuecontroller.frameworks.reconcile import ALONE, Setting, effective_queue
from queuecontroller.frameworks.starting import PodSetInfo, is_suspended, start_patch
from queuecontroller.frameworks.state import Finished, finished
from queuecontroller.frameworks.table import Framework, framework_named
from queuecontroller.frameworks.workload import (
    owner_reference,
    pod_sets,
    prebuilt_of,
    queue_of,
    workload_of,
)
from queuecontroller.scheduler.model import reasons
from sluicecommon.reader import ManifestError

ROLE_MAIN: Final = "main"


def _pod_framework() -> Framework:
    fw = framework_named("pod")
    assert fw is not None
    return fw


POD: Final = _pod_framework()


def start_pod_patch(pod: Document, info: PodSetInfo) -> dict[str, Any]:
    """The patch that starts a pod. Raises ManifestError."""
    return start_patch(POD, pod, [PodSetInfo("main", None, *_rest(info))])


def _rest(info: PodSetInfo) -> tuple[Any, ...]:
    return info.labels, info.annotations, info.node_selector, info.tolerations, info.gates


def elastic_pod_patch(pod: Document) -> dict[str, Any]:
    """The patch that starts a pod of an elastic job; empty: it is started already."""
    gates = at(pod, ("spec", "schedulingGates"))
    known = [one for one in gates if isinstance(one, Mapping)] if is_list(gates) else []
    rest = [one for one in known if one.get("name") != names.ELASTIC_GATE]
    return {} if len(rest) == len(known) else {"spec": {"schedulingGates": rest or None}}


def reconcile_pods(
    pods: Iterable[Document], workload: Document | None, around: Setting = ALONE
) -> list[PodAction]:
    """Actions for the pods of one group, or for one pod without a group, and their Workload. Never
    raises."""
    known = sorted(pods, key=age_of)
    if not known:
        return [DeleteWorkload("its pods are gone")] if workload is not None else []
    try:
        return _Pods(known, workload, around).actions()
    except ManifestError as error:
        return [refusal(error)]
    except RecursionError:
        return [Refuse((TOO_DEEP,))]


def is_over(pod: Document) -> bool:
    """True for a pod that runs no more: it has ended, or was deleted without a grace period, as one
    is that no node has."""
    grace_s = at(pod, ("metadata", "deletionGracePeriodSeconds"))
    leaving = at(pod, ("metadata", "deletionTimestamp")) not in (ABSENT, None)
    return finished(POD, pod) is not None or (leaving and grace_s == 0)


def age_of(pod: Document) -> tuple[bool, str, str]:
    """Sort key of the pods to keep: running ones first, then the oldest."""
    made = text_at(pod, "metadata", "creationTimestamp")
    return is_suspended(POD, pod), made, text_at(pod, "metadata", "name")


@dataclass(frozen=True, slots=True)
class PodState:
    document: Document
    name: str
    role: str
    gated: bool
    done: Finished | None
    leaving: bool
    """True if it is being deleted."""

    @property
    def alive(self) -> bool:
        return self.done is None and not self.leaving

    @property
    def is_evicted(self) -> bool:
        """True if it was stopped because its Workload was evicted."""
        reason = condition_of(self.document, reasons.TERMINATION_TARGET).get("reason")
        evicted = isinstance(reason, str) and reason.startswith(reasons.WORKLOAD_EVICTED)
        return self.leaving and evicted

    @property
    def held(self) -> bool:
        """True if the finalizer keeps it."""
        found = at(self.document, ("metadata", "finalizers"))
        return isinstance(found, list) and names.MANAGED in found

    @property
    def ready(self) -> bool:
        return holds(self.document, "Ready")


def read_pod_state(pod: Document) -> PodState:
    return PodState(
        pod,
        text_at(pod, "metadata", "name"),
        role_of(pod),
        is_suspended(POD, pod),
        finished(POD, pod),
        at(pod, ("metadata", "deletionTimestamp")) not in (ABSENT, None),
    )


@dataclass(slots=True)
class _Pods:
    """The state during one call; `pods` are in the order in which they are kept."""

    documents: Sequence[Document]
    workload: Document | None
    around: Setting
    pods: list[PodState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = [read_pod_state(one) for one in self.documents]

    @property
    def first(self) -> Document:
        return self.documents[0]

    @property
    def group(self) -> str:
        return group_of(self.first)

    @property
    def total(self) -> int:
        if not self.group:
            return 1
        total = self.around.group_total
        return total_of(self.first) if total is None else total

    @property
    def serving(self) -> bool:
        return text_at(self.first, "metadata", "annotations", names.GROUP_SERVING) == "true"

    @property
    def fast(self) -> bool:
        return text_at(self.first, "metadata", "annotations", names.GROUP_FAST) == "true"

    @property
    def alive(self) -> list[PodState]:
        return [one for one in self.pods if one.alive]

    @property
    def succeeded(self) -> list[PodState]:
        return [one for one in self.pods if one.done is not None and one.done.success]

    def actions(self) -> list[PodAction]:
        if excess := self.excess():
            return excess
        if self.workload is None:
            return self.without_workload()
        return self.with_workload(self.workload)

    def excess(self) -> list[PodAction]:
        if not self.group:
            return []
        room = max(0, self.total - (0 if self.serving else len(self.succeeded)))
        more = self.alive[room:]
        return [DeletePod(one.name, "the group has its pods") for one in more]

    def result(self) -> Finished | None:
        if not self.group:
            (one,) = self.pods[:1]
            return one.done
        if self.serving:
            return None
        done = len(self.succeeded)
        if self.total and done >= self.total:
            return Finished(True, reasons.SUCCEEDED, f"Pods succeeded: {done}/{self.total}")
        last = any(is_unretriable(one.document) for one in self.pods)
        if last and not self.alive:
            return Finished(False, reasons.FAILED, f"Pods succeeded: {done}/{self.total}")
        return None

    def without_workload(self) -> list[PodAction]:
        released = self.release(self.result() is not None)
        if any(not one.gated for one in self.alive):
            return self.stop("it has no Workload", reasons.UNMATCHED)
        if released or self.result() or not self.alive or not self.queued():
            return released
        if prebuilt_of(self.first):
            return []  # another controller makes it
        if self.group and not self.fast and len(self.alive) + len(self.succeeded) < self.total:
            return []
        return [CreateWorkload(self.made())]

    def queued(self) -> bool:
        if not self.around.namespace_selected:
            return False
        return bool(self.queue) or self.around.without_queue

    @property
    def queue(self) -> str:
        """The LocalQueue of the group: its StatefulSet's, or the one that its first pod names."""
        above = self.around.group_document
        named = queue_of(above) if above is not None else ""
        return named or effective_queue(POD, self.first, self.around)

    def with_workload(self, workload: Document) -> list[PodAction]:
        result = self.result()
        if holds(workload, reasons.FINISHED):
            return self.release(True) or self.stop("its Workload is finished", reasons.NOT_ADMITTED)
        if result is not None:
            return [FinishWorkload(result)]
        if at(workload, ("metadata", "deletionTimestamp")) not in (ABSENT, None):
            return self.stop("its Workload is being deleted", reasons.WORKLOAD_DELETED) or [
                DeleteWorkload("it is being deleted")
            ]
        if not self.alive and not self.group:
            return [*self.release(True), DeleteWorkload("its pod is gone")]
        if self.total == 0 and self.around.group_document is not None:
            return self.release(True)  # It is put on hold once the last pod is gone.
        if not self.known_roles(workload):
            what = "its pods are not those of its Workload"
            stopped = self.stop(what, reasons.UNMATCHED)
            return stopped or [DeleteWorkload("its pods are not those of the group")]
        if holds(workload, reasons.EVICTED):
            return self.evicted(workload)
        if not holds(workload, reasons.ADMITTED):
            stopped = self.stop("its Workload is not admitted", reasons.NOT_ADMITTED)
            return stopped or [
                *self.resume(workload),
                *self.follow(workload),
                *self.own(workload),
                *self.release(False),
            ]
        return [
            *self.start(),
            *self.own(workload),
            *self.report(workload),
            *self.release(False),
        ]

    def known_roles(self, workload: Document) -> bool:
        given = {str(one.get("name", "main")): count_of(one) for one in pod_sets_of(workload)}
        if not self.group:
            return len(given) == 1
        counted: dict[str, int] = {}
        for one in self.alive:
            counted[one.role] = counted.get(one.role, 0) + 1
        return sum(given.values()) == self.total and all(
            role in given and count <= given[role] for role, count in counted.items()
        )

    def evicted(self, workload: Document) -> list[PodAction]:
        due = str(condition_of(workload, reasons.EVICTED).get("reason") or reasons.EVICTED)
        text = reason_of(workload, reasons.EVICTED)
        stopped = self.stop(text, f"{reasons.WORKLOAD_EVICTED}DueTo{due}")
        if stopped:
            return stopped
        if owned := self.own(workload):
            return owned  # Before its former owners are released.
        reserved = holds(workload, reasons.QUOTA_RESERVED)
        made: list[PodAction] = self.release(False)
        if not any(self.is_kept(one) for one in self.pods):
            going = any(
                one.leaving and not one.gated and not is_over(one.document) for one in self.pods
            )
            if reserved:
                return [*made, *([] if going else [ReleaseQuota()])]
            return [*made, *self.resume_replaced(workload)]
        if any(not is_over(one.document) for one in self.pods if one.leaving):
            return made
        missing = not self.is_complete
        if missing != holds(workload, reasons.WAITING_FOR_PODS):
            made.append(WaitForReplacements(missing, due, text))
        if missing and not self.is_on_hold(workload):
            made.append(HoldWorkload(reasons.TO_BE_REPLACED))
        elif not missing:
            made += [ReleaseQuota()] if reserved else self.resume(workload)
        return made

    def stop(self, why: str, reason: str) -> list[PodAction]:
        return [DeletePod(one.name, why, reason) for one in self.alive if not one.gated]

    def start(self) -> list[PodAction]:
        return [
            StartPod(one.name, one.role if self.group else "main")
            for one in self.alive
            if one.gated
        ]

    def resume_replaced(self, workload: Document) -> list[PodAction]:
        """Queue an evicted group again that has all its pods. The hold may have been written only
        after the pods were replaced and their predecessors released."""
        if not self.group or not (self.is_complete or self.serving):
            return []
        waits = holds(workload, reasons.WAITING_FOR_PODS)
        made: list[PodAction] = [WaitForReplacements(False)] if waits else []
        return made + self.resume(workload)

    @staticmethod
    def is_on_hold(workload: Document) -> bool:
        return condition_of(workload, reasons.QUOTA_RESERVED).get("reason") == reasons.ON_HOLD

    def resume(self, workload: Document) -> list[PodAction]:
        return [ResumeWorkload()] if self.is_on_hold(workload) else []

    def follow(self, workload: Document) -> list[PodAction]:
        """Update gates and queue of a Workload without quota to those of the pods, or of the owner
        of their group; and its waiting pods, which the owner would replace only once they run."""
        if prebuilt_of(self.first):
            return []
        patch = fewer_gates(self.around.group_document or self.first, workload)
        queue = self.queue
        reserved = holds(workload, reasons.QUOTA_RESERVED)
        if queue and not reserved and at(workload, ("spec", "queueName")) != queue:
            patch["spec"] = {"queueName": queue}
        made: list[PodAction] = [UpdateWorkload(patch, "its pods have changed")] if patch else []
        label: Any = {"metadata": {"labels": {names.QUEUE_NAME: queue}}}
        waiting = [one for one in self.alive if one.gated] if self.around.group_document else []
        return made + [
            MovePod(one.name, label) for one in waiting if queue and queue_of(one.document) != queue
        ]

    def own(self, workload: Document) -> list[PodAction]:
        """Make every pod of a group an owner of its Workload, so that it is deleted with the last
        one."""
        if not self.group:
            return []
        owners = at(workload, ("metadata", "ownerReferences"))
        known = [one for one in owners if isinstance(one, Mapping)] if is_list(owners) else []
        have = {str(one.get("uid")) for one in known}
        new = [one for one in self.owners() if one["uid"] not in have]
        if not new:
            return []
        patch = {"metadata": {"ownerReferences": [*known, *new]}}
        return [UpdateWorkload(patch, "the group has a new pod")]

    def owners(self) -> list[dict[str, Any]]:
        above = self.around.group_owner
        pods = [self.owner(one.document) for one in self.alive]
        return [dict(above), *pods] if above is not None else pods

    def owner(self, pod: Document) -> dict[str, Any]:
        made = owner_reference(POD, pod)
        return {key: made[key] for key in ("apiVersion", "kind", "name", "uid")}

    def report(self, workload: Document) -> list[PodAction]:
        made: list[PodAction] = []
        up = sum(one.ready for one in self.alive) + len(self.succeeded)
        ready = up >= self.total - self.allowed
        if ready != holds(workload, reasons.PODS_READY):
            made.append(SetPodsReady(ready))
        free: dict[str, int] = {}
        if self.group and not self.serving:
            for one in self.succeeded:
                free[one.role] = free.get(one.role, 0) + 1
            if free != reclaimable_of(workload):
                made.append(UpdateReclaimable(free))
        missing = bool(self.group) and not self.is_complete
        if missing != holds(workload, reasons.WAITING_FOR_PODS):
            made.append(WaitForReplacements(missing))
        return made

    @property
    def is_complete(self) -> bool:
        """True if no pod of the group is missing."""
        return len(self.alive) + len(self.succeeded) >= self.total

    def is_kept(self, one: PodState) -> bool:
        """True for a pod that stays until it is replaced, although it is being deleted."""
        success = one.done is not None and one.done.success
        grouped = bool(self.group) and not self.serving and self.workload is not None
        return grouped and one.is_evicted and not success

    @property
    def allowed(self) -> int:
        """Number of pods of the group that may lack readiness: the least that any of them
        allows."""
        if not self.group or not self.around.may_lack_pods:
            return 0
        counted = [*self.alive, *self.succeeded]
        return min((may_lack(one.document, self.total) for one in counted), default=0)

    def release(self, ended: bool) -> list[PodAction]:
        """Release pods that need not be counted any more. A pod that is being deleted is released
        once it has stopped; one that succeeded counts until the whole group has ended; one that
        failed or was evicted is kept until it is replaced. A group that is deleted as a whole is
        not kept."""
        evicted = self.workload is not None and all(one.is_evicted for one in self.pods)
        ended = ended or (all(one.leaving for one in self.pods) and not evicted)
        full = self.serving or self.is_complete
        made: list[PodAction] = []
        for one in self.pods:
            if self.is_kept(one):
                free = ended or full
            elif one.done is None:
                free = one.leaving
            elif one.done.success and self.group and not self.serving:
                free = ended
            else:
                free = ended or full
            if free and one.held:
                made.append(ReleasePod(one.name, without_finalizer(one.document)))
        return made

    def made(self) -> dict[str, Any]:
        made = workload_of(
            POD,
            self.first,
            queue=self.queue,
            priority=self.around.priority(POD, self.first),
            labels_to_copy=self.around.labels_to_copy,
            longest_name=self.around.longest_name,
        )
        if not self.group:
            return made
        made["metadata"]["name"] = self.group
        if (above := self.around.group_document) is not None:
            gates = text_at(above, "metadata", "annotations", names.GATED_BY)
            if gates:
                made["metadata"].setdefault("annotations", {})[names.GATED_BY] = gates
        made["metadata"]["labels"].pop(names.JOB_UID, None)
        if (owner := self.around.group_owner) is not None:
            made["metadata"]["labels"][names.JOB_UID] = owner["uid"]
        made["metadata"].setdefault("annotations", {})[names.IS_GROUP] = "true"
        made["metadata"]["ownerReferences"] = self.owners()
        made["spec"]["podSets"] = self.roles()
        return made

    def roles(self) -> list[dict[str, Any]]:
        """One pod set for each role, in the order in which their first pods are kept."""
        made: dict[str, dict[str, Any]] = {}
        for one in self.alive:
            if one.role in made:
                made[one.role]["count"] += 1
            else:
                (made[one.role],) = pod_sets(POD, one.document)
                made[one.role]["name"] = one.role
        for one in self.succeeded:
            if one.role in made:
                made[one.role]["count"] += 1
        missing = self.total - sum(one["count"] for one in made.values())
        if missing > 0:  # let in before all are there: they are like the first
            next(iter(made.values()))["count"] += missing
        return list(made.values())


def count_of(pod_set: Mapping[str, Any]) -> int:
    found = pod_set.get("count", 1)
    return found if type(found) is int else 0


def without_finalizer(pod: Document) -> dict[str, Any]:
    found = at(pod, ("metadata", "finalizers"))
    rest = [one for one in found if one != names.MANAGED] if is_list(found) else []
    return {"metadata": {"finalizers": rest or None}}
