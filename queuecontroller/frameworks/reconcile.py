"""Reconciliation of a job and its Workload: a pure function that returns a list of actions, in
order.

Nothing is stored between two calls. Each list is valid for the two documents it was made from; when
they have changed, by these actions or otherwise, the next call returns what remains to be done. The
same documents give the same list, and an empty one once nothing remains. The file is long: all
kinds of jobs share each of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.actions import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    FinishWorkload,
    Refuse,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    SetPodsReady,
    Start,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    refusal,
)
from queuecontroller.frameworks.annotations.gates import fewer_gates
from queuecontroller.frameworks.comparing import (
    alike,
    counts_of,
    holds,
    is_checkpointed,
    is_list,
    is_present,
    is_restoring,
    keeps_quota,
    let_in,
    owned_by,
    pod_sets_of,
    reason_of,
    reclaimable_of,
)
from queuecontroller.frameworks.patches import ABSENT, TOO_DEEP, Document, at, difference
from queuecontroller.frameworks.slots import Runtime
from queuecontroller.frameworks.starting import before_start, has_note, is_suspended, stop_patch
from queuecontroller.frameworks.state import (
    Finished,
    clusters_made,
    counts_made,
    finished,
    is_active,
    pods_ready,
    reclaimable,
)
from queuecontroller.frameworks.table import Framework, Holding, framework_of
from queuecontroller.frameworks.workload import (
    WORKLOAD_CLASS,
    NoPriorityClass,
    PriorityClass,
    max_execution_s,
    owner_reference,
    pod_sets,
    prebuilt_of,
    priority_class_of,
    queue_of,
    workload_of,
)
from queuecontroller.scheduler.model import reasons
from sluicecommon.reader import ManifestError, Problem, Reader

_ANNOTATIONS: Final = ("metadata", "annotations")


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings and facts that affect a job's reconciliation besides the job and its Workload."""

    without_queue: bool = False
    """True with manageJobsWithoutQueueName, if its namespace is selected."""
    default_queue: bool = False
    """True if its namespace has a LocalQueue named `default`."""
    namespace_selected: bool = True
    """False if managedJobsNamespaceSelector excludes its namespace: no job of it is queued."""
    default_class: bool = False
    """True if a job that names no WorkloadPriorityClass gets the one named `default`."""
    longest_ready_s: int | None = None
    """The longest timeout that a job may have of its own for its pods to be ready; None: it has
    none."""
    may_lack_pods: bool = False
    """True if the pods of a group may allow some of them not to be ready."""
    fixed_upgrades: bool = False
    """True if a RayService may not be upgraded by a second cluster."""
    spreads: bool = False
    """True if the rules count by which pod sets are spread over a topology."""
    parent_managed: bool = False
    """True if one of its owners is queued, so that it follows that owner."""
    runtime: Runtime = None
    """The object that a TrainJob refers to."""
    priority_of: Callable[[PriorityClass | None], int | None] = field(
        default=lambda named: None if named is None else 0
    )
    """The value of a class, or of a job that names none; None: there is no such class."""
    labels_to_copy: Sequence[str] = ()
    longest_name: int = names.LONGEST_NAME
    group_total: int | None = None
    """Number of pods of a group whose owner has a size of its own; None: the pods state it."""
    group_owner: Mapping[str, str] | None = None
    """Owner reference, for such a group, to the owner that recreates its pods. Its Workload
    outlives the pods."""
    group_document: Document | None = None
    """That owner."""

    clusters: Sequence[Document] = ()
    """RayClusters that an elastic RayJob or RayService made. Their autoscalers resize them, not the
    job's own fields, and while a service is upgraded there are two."""
    dispatches: Callable[[str], bool] = field(default=lambda queue: False)
    """True if jobs of a LocalQueue run in other clusters, by MultiKueue."""

    made_jobs_active: Callable[[], bool] = field(default=lambda: False)
    """True if Jobs that the job made still have pods; its own status may not count these."""

    def priority(self, fw: Framework, document: Document) -> int | None:
        """The job's priority; None: there is no default. Raises NoPriorityClass, ManifestError."""
        return self.value_of(priority_class_of(fw, document, self.runtime))

    def value_of(self, named: PriorityClass | None) -> int | None:
        """Raises NoPriorityClass."""
        value = self.priority_of(named)
        if value is None and named is not None:
            raise NoPriorityClass(named)
        return value


ALONE: Final = Setting()


def effective_queue(fw: Framework, document: Document, around: Setting = ALONE) -> str:
    """The LocalQueue that the job waits in; empty: it names none, and there is no default."""
    return queue_of(document) or (names.DEFAULT_QUEUE if around.default_queue else "")


def is_managed(fw: Framework, document: Document, around: Setting = ALONE) -> bool:
    """True if the job has to wait for quota."""
    if not around.namespace_selected or around.parent_managed:
        return False
    if _skipped(document):
        return False
    if _makes_pods_for_another(fw, document):
        return False
    return bool(effective_queue(fw, document, around)) or around.without_queue


def runs_elsewhere(fw: Framework, document: Document) -> bool:
    """True if the job is MultiKueue's: it has no pods here, and its status is that of its copy in
    another cluster."""
    return bool(fw.managed_by) and at(document, fw.managed_by) == names.MULTIKUEUE


def _makes_pods_for_another(fw: Framework, document: Document) -> bool:
    """True for the StatefulSets of a LeaderWorkerSet: the pods are queued as groups of that set,
    which has marked the templates."""
    marked = at(document, ("spec", "template", *_ANNOTATIONS, names.SUSPENDING_PARENT))
    return fw.holding is Holding.PODS and isinstance(marked, str) and marked != fw.name


def _skipped(document: Document) -> bool:
    """True for a RayJob that uses an existing RayCluster, since it makes no pods of its own."""
    if document.get("kind") != "RayJob":
        return False
    selector = at(document, ("spec", "clusterSelector"))
    return isinstance(selector, Mapping) and bool(selector)


def reconcile(
    fw: Framework,
    document: Document | None,
    workload: Document | None,
    around: Setting = ALONE,
) -> list[Action]:
    """Actions for a job that is suspended by a field; pods are in pods.py. Never raises: for an
    unreadable document it returns `Refuse`."""
    if fw.holding is not Holding.SUSPEND:
        return []
    if document is None:
        return [DeleteWorkload("its job is gone")] if workload is not None else []
    try:
        return _Job(fw, document, workload, around).actions()
    except ManifestError as error:
        return [refusal(error)]
    except RecursionError:
        return [Refuse((TOO_DEEP,))]


def is_elastic(document: Document) -> bool:
    """True if it may grow and shrink while it runs, by slices: a Workload for more pods replaces
    the one that it has."""
    fw = framework_of(document)
    noted = at(document, ("metadata", "annotations", names.ELASTIC))
    return fw is not None and fw.elastic and noted == "true"


def reconcile_slices(
    fw: Framework,
    document: Document | None,
    workloads: Sequence[Document],
    around: Setting = ALONE,
) -> list[tuple[Document | None, Action]]:
    """Actions for a job that may have several Workloads, each with its Workload. Of unfinished ones
    the oldest stays, for an elastic job also the newest (its next slice); others are deleted."""
    alive = sorted((one for one in workloads if not holds(one, reasons.FINISHED)), key=_age)
    if document is None:
        return [(one, act) for one in workloads for act in reconcile(fw, None, one, around)]
    if len(alive) < 2:
        # A finished slice only states that another replaced it.
        counts = alive if is_elastic(document) else alive or workloads
        mine = counts[0] if counts else None
        return [(mine, act) for act in reconcile(fw, document, mine, around)]
    if done := finished(fw, document):
        return [(one, FinishWorkload(done)) for one in alive]
    first, *others = alive
    if not is_elastic(document) or len(others) > 1:
        more = others if not is_elastic(document) else others[:-1]
        return [(one, DeleteWorkload("the job has another Workload")) for one in more]
    (new,) = others
    if holds(first, reasons.EVICTED) or not holds(first, reasons.QUOTA_RESERVED):
        what = "the Workload slice is out of step with its job"
        return [(first, FinishWorkload(Finished(False, "OutOfSync", what)))]
    try:
        made: list[tuple[Document | None, Action]] = [
            (new, act) for act in _Job(fw, document, first, around).resize_slice(first, new)
        ]
        kept = _Job(fw, document, first, around, growing=True).actions()
        return made + [(first, act) for act in kept]
    except ManifestError as error:
        return [(None, refusal(error))]
    except RecursionError:
        return [(None, Refuse((TOO_DEEP,)))]


def _age(workload: Document) -> tuple[str, bool, str]:
    made, name = (at(workload, ("metadata", key)) for key in ("creationTimestamp", "name"))
    replaces = at(workload, ("metadata", "annotations", names.REPLACEMENT_FOR)) is not ABSENT
    return (made if isinstance(made, str) else "", replaces, name if isinstance(name, str) else "")


@dataclass(frozen=True, slots=True)
class _Job:
    fw: Framework
    document: Document
    workload: Document | None
    around: Setting
    growing: bool = False
    """True if a Workload for more pods waits beside this one."""

    def actions(self) -> list[Action]:
        if self.workload is None:
            return self.without_workload()
        return self.with_workload(self.workload)

    @property
    def suspended(self) -> bool:
        return is_suspended(self.fw, self.document)

    @property
    def active(self) -> bool:
        """True if it has pods here."""
        return not runs_elsewhere(self.fw, self.document) and is_active(self.fw, self.document)

    @property
    def managed(self) -> bool:
        return is_managed(self.fw, self.document, self.around)

    @property
    def deleted(self) -> bool:
        return is_present(at(self.document, ("metadata", "deletionTimestamp")))

    def without_workload(self) -> list[Action]:
        if self.deleted or finished(self.fw, self.document) or not self.managed:
            return []
        if not self.suspended:
            return self.suspend("it has no Workload")
        if has_note(self.document):
            return self.restore()
        if name := prebuilt_of(self.document):
            what = f"the Workload {name} does not exist"
            return [Refuse((Problem(f"metadata.labels.{names.PREBUILT}", what, "create it"),))]
        return [CreateWorkload(self.wanted())]

    def with_workload(self, workload: Document) -> list[Action]:
        done = finished(self.fw, self.document)
        if is_present(at(workload, ("metadata", "deletionTimestamp"))):
            return self.with_deleted(done)
        if holds(workload, reasons.FINISHED):
            if done or self.suspended or self.deleted:
                return []
            return self.suspend("its Workload is finished")
        if done:
            return [FinishWorkload(done)]
        if self.deleted:
            return []
        if self.suspended and not self.managed:
            return [DeleteWorkload("it is not queued any more")]
        prebuilt = bool(prebuilt_of(self.document))
        if prebuilt and not owned_by(workload, self.document):
            return self.take_over(workload)
        if not self.in_step(workload):
            return self.out_of_step(workload, prebuilt)
        if resized := self.resize(workload):
            return resized
        if holds(workload, reasons.EVICTED):
            return self.evicted(workload)
        if not holds(workload, reasons.ADMITTED):
            if not self.suspended and is_restoring(workload):
                return []  # Its pods are paused on their node.
            if not self.suspended:
                return self.suspend("its Workload is not admitted", workload)
            if has_note(self.document):
                return self.restore(workload)
            return self.follow(workload)
        if self.suspended:
            return self.reset_start_time() or [Start()]
        return self.report(workload)

    def with_deleted(self, done: Finished | None) -> list[Action]:
        """Suspend the job of a Workload that is being deleted, since it would run without quota;
        once it is suspended, remove the finalizer."""
        if self.suspended or self.deleted or done or not self.managed:
            return [DeleteWorkload("it is being deleted")]
        return self.suspend("its Workload is being deleted", self.workload)

    def evicted(self, workload: Document) -> list[Action]:
        if not self.suspended and is_checkpointed(workload):
            return []
        if not self.suspended:
            return self.suspend(reason_of(workload, reasons.EVICTED), workload)
        if self.active or self.around.made_jobs_active():
            return []
        made: list[Action] = []
        if has_note(self.document):
            made += self.restore(workload)
        if keeps_quota(workload):
            made.append(ReleaseQuota())
        return made

    def suspend(self, why: str, workload: Document | None = None) -> list[Action]:
        patch = stop_patch(self.fw, self.document, pod_sets_of(workload), self.around.runtime)
        return [Suspend(patch, why)]

    def restore(self, workload: Document | None = None) -> list[Action]:
        if self.active:
            return []
        if reset := self.reset_start_time():
            return reset
        patch = stop_patch(self.fw, self.document, pod_sets_of(workload), self.around.runtime)
        return [Restore(patch)] if patch else []

    def reset_start_time(self) -> list[Action]:
        started = is_present(at(self.document, ("status", "startTime")))
        if self.fw.name != "batch/job" or not started or self.active:
            return []
        return [ResetStartTime({"status": {"startTime": None}})]

    def wanted(self) -> dict[str, Any]:
        was = before_start(self.document)
        runtime = self.around.runtime
        made = workload_of(
            self.fw,
            was,
            queue=effective_queue(self.fw, was, self.around),
            priority=self.around.priority(self.fw, was),
            labels_to_copy=self.around.labels_to_copy,
            longest_name=self.around.longest_name,
            runtime=runtime,
            made=clusters_made(self.around.clusters),
        )
        if self.around.clusters:
            counts = self.counts()
            for one in made["spec"]["podSets"]:
                one["count"] = counts[one["name"]]
        return made

    def take_over(self, workload: Document) -> list[Action]:
        """Adopt a prebuilt Workload."""
        owners = at(workload, ("metadata", "ownerReferences"))
        known = [one for one in owners if isinstance(one, Mapping)] if is_list(owners) else []
        if any(one.get("controller") is True for one in known):
            if not self.suspended:
                return self.suspend("its Workload is another job's", workload)
            what = "the Workload belongs to another job"
            fix = "name one that belongs to none"
            return [Refuse((Problem(f"metadata.labels.{names.PREBUILT}", what, fix),))]
        owner = owner_reference(self.fw, self.document)
        labels = {names.JOB_UID: owner["uid"]}
        patch = {"metadata": {"ownerReferences": [*known, owner], "labels": labels}}
        return [UpdateWorkload(patch, "its job is there")]

    def in_step(self, workload: Document) -> bool:
        """True if the Workload matches the pods of the job."""
        mine = pod_sets(self.fw, before_start(self.document), self.around.runtime)
        given = pod_sets_of(workload)
        fixed = has_note(self.document) or self.suspended
        counted = not is_elastic(self.document)
        fewer = {} if fixed else let_in(workload)
        return len(mine) == len(given) and all(
            alike(one, other, fixed, counted and fewer.get(one["name"]) != one["count"])
            for one, other in zip(mine, given, strict=True)
        )

    def resize(self, workload: Document) -> list[Action]:
        """Resize the Workload of an elastic job: in place for fewer pods or before it has quota.
        Additional pods wait in a slice of their own, while the running ones continue."""
        if not is_elastic(self.document) or self.growing:
            return []
        mine, given = self.counts(), counts_of(pod_sets_of(workload))
        if mine == given:
            return []
        smaller = all(count <= given.get(name, 0) for name, count in mine.items())
        if smaller or not holds(workload, reasons.QUOTA_RESERVED):
            return [self.recount(workload, mine)]
        if self.suspended:
            if holds(workload, reasons.EVICTED):
                return []  # It is resized when its quota is free.
            return [DeleteWorkload("the job requests more pods than it was granted")]
        made = self.wanted()
        place = at(workload, ("metadata", "namespace")), at(workload, ("metadata", "name"))
        first = at(workload, ("metadata", "annotations", names.SLICE_NAME))
        made["metadata"].setdefault("annotations", {}).update(
            {
                names.REPLACEMENT_FOR: "/".join(str(one) for one in place),
                names.SLICE_NAME: str(place[1]) if first is ABSENT else first,
            }
        )
        return [CreateWorkload(made)]

    def resize_slice(self, first: Document, new: Document) -> list[Action]:
        """Resize the waiting slice, or delete it if no more pods are wanted."""
        mine = self.counts()
        if mine == counts_of(pod_sets_of(first)):
            return [DeleteWorkload("the job requests no more pods than it has")]
        if mine == counts_of(pod_sets_of(new)) or holds(new, reasons.QUOTA_RESERVED):
            return []
        return [self.recount(new, mine)]

    def counts(self) -> dict[str, int]:
        was = before_start(self.document)
        sets = pod_sets(self.fw, was, self.around.runtime)
        found = {one["name"]: one["count"] for one in sets}
        return {**found, **counts_made(self.around.clusters, found)}

    def recount(self, workload: Document, counts: Mapping[str, int]) -> Action:
        known = pod_sets_of(workload)
        changed = [{**one, "count": counts[str(one.get("name", "main"))]} for one in known]
        return UpdateWorkload({"spec": {"podSets": changed}}, "the job has another size")

    def out_of_step(self, workload: Document, prebuilt: bool) -> list[Action]:
        if not self.suspended:
            return self.suspend("its pods are not those of its Workload", workload)
        if prebuilt:
            what = "its pods are not those of the job"
            return [FinishWorkload(Finished(False, "OutOfSync", what))]
        if has_note(self.document):
            return self.restore(workload)
        if holds(workload, reasons.QUOTA_RESERVED):
            return [DeleteWorkload("its pods are not those of the job any more")]
        wanted = self.wanted()["spec"]["podSets"]
        return [UpdateWorkload({"spec": {"podSets": wanted}}, "the job's pods have changed")]

    def follow(self, workload: Document) -> list[Action]:
        """Update queue, priority and time limit of a Workload to the job's; with quota only the
        priority."""
        head = Reader(self.document).child("metadata")
        longest_s = max_execution_s(head)
        if head.problems:
            raise ManifestError(head.problems)
        if prebuilt_of(self.document):
            return []
        named = priority_class_of(self.fw, self.document, self.around.runtime)
        if holds(workload, reasons.QUOTA_RESERVED):
            return self.follow_priority(workload, named)
        spec = at(workload, ("spec",))
        known: dict[str, Any] = dict(spec) if isinstance(spec, Mapping) else {}
        wanted = {**known}
        for key, value in (
            ("queueName", effective_queue(self.fw, self.document, self.around) or None),
            ("maximumExecutionTimeSeconds", longest_s),
            ("priorityClassRef", named.reference if named else None),
        ):
            wanted[key] = value
            if value is None:
                del wanted[key]
        if wanted.get("priorityClassRef") != known.get("priorityClassRef"):
            wanted["priority"] = self.around.value_of(named) or 0
        spec_patch = difference(known, wanted)
        patch = fewer_gates(self.document, workload)
        path = (*_ANNOTATIONS, names.WAIT_FOR_PODS_READY)
        timeouts, before = (at(one, path) for one in (self.document, workload))
        if timeouts != before:
            given = patch.setdefault("metadata", {}).setdefault("annotations", {})
            given[names.WAIT_FOR_PODS_READY] = None if timeouts is ABSENT else timeouts
        if spec_patch:
            patch["spec"] = spec_patch
        return [UpdateWorkload(patch, "its job has changed")] if patch else []

    def follow_priority(self, workload: Document, named: PriorityClass | None) -> list[Action]:
        """Update the priority of a Workload with quota to that of another WorkloadPriorityClass: it
        may be preempted, and those that it might preempt are not its own any more."""
        known = at(workload, ("spec", "priorityClassRef"))
        if named is None or named.kind != WORKLOAD_CLASS or named.reference == known:
            return []
        try:
            priority = self.around.value_of(named)
        except NoPriorityClass as error:
            return [refusal(error)]  # The job runs on with its former priority.
        patch = {"spec": {"priorityClassRef": named.reference, "priority": priority}}
        return [UpdateWorkload(patch, "its job has another priority class")]

    def report(self, workload: Document) -> list[Action]:
        made: list[Action] = self.follow(workload)
        free = reclaimable(self.fw, self.document, self.around.runtime)
        if free != reclaimable_of(workload):
            made.append(UpdateReclaimable(free))
        ready = pods_ready(self.fw, self.document, self.around.runtime)
        if ready != holds(workload, reasons.PODS_READY):
            made.append(SetPodsReady(ready))
        return made
