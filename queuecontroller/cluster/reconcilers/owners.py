"""Maps Workloads to the units that own them; a change of either queues the unit.

Each unit (units.py) is reconciled by one task at a time, several units at once. A Workload keeps
its quota while a write that starts its unit is in flight, and until a stopped unit has no pods any
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, assert_never

from queuecontroller.cluster.cache.job_context import (
    FRAMEWORKS,
    JOBS,
    KINDS,
    RAY_CLUSTERS,
    SETS,
    above,
    kind_of,
    made_by,
)
from queuecontroller.cluster.cache.kinds import IN_USE, WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import (
    Document,
    controller_of,
    has_condition,
    is_leaving,
    key_of,
    labels_of,
    split_key,
)
from queuecontroller.cluster.reconcilers.jobs import Jobs
from queuecontroller.cluster.reconcilers.missed_owners import OWNERS, MissedOwners
from queuecontroller.cluster.reconcilers.missed_pods import MissedPods
from queuecontroller.cluster.reconcilers.pods import Pods
from queuecontroller.cluster.reconcilers.topology_gates import TopologyGates
from queuecontroller.cluster.reconcilers.units import (
    Unit,
    UnitKind,
    group_unit,
    of_workload,
    placed_unit,
    set_of,
    unit_of,
)
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.frameworks import group_of_set, is_elastic, is_suspended, prebuilt_of
from queuecontroller.frameworks.names import JOB_UID, ORIGIN
from queuecontroller.frameworks.table import OfRuntime
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import EVICTED, FINISHED, OWNER_NOT_FOUND
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS, Resource

WIDTH: Final = 12
MADE: Final = (RAY_CLUSTERS, JOBS)
"""Kinds of what an elastic RayJob or RayService makes: its clusters, and the Job that submits."""
ORPHANED_S: Final = 1.0
"""Seconds after which a Workload without owners is looked at again while its job is still known."""


class Reconcilers:
    """The reconcilers of jobs and pods behind one work queue."""

    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        recorder: EventRecorder,
    ) -> None:
        self._cache = mirror.cache
        self._may_write = may_write
        self.workload_actions = WorkloadActions(shell, mirror.cache, client, recorder)
        self.work_queue: WorkQueue[Unit] = WorkQueue("job", self._reconcile, WIDTH)
        self._jobs = Jobs(self.workload_actions, self.work_queue.add)
        self._pods = Pods(self.workload_actions, self.work_queue.add)
        self._gates = TopologyGates(self.workload_actions)
        self._missed = MissedPods(self.workload_actions)
        self._missed_owners = MissedOwners(self.workload_actions)
        self._unit_of: dict[str, Unit] = {}
        """The unit that each Workload belongs to."""
        self._of_unit: dict[Unit, dict[str, None]] = {}
        self._set_of: dict[str, Unit] = {}
        """The LeaderWorkerSet that each Workload was created for."""
        self._maker_of: dict[Unit, Unit] = {}
        """The elastic job that made a RayCluster or a Job."""
        self._prebuilt_for: dict[str, Unit] = {}
        """Prebuilt Workloads that do not exist yet, and the units that wait for them."""
        shell.book.run_elsewhere(self)

    @property
    def writes_total(self) -> int:
        return self.workload_actions.writes_total

    # -- changes ----------------------------------------------------------------------------------

    def add_all(self) -> None:
        for pod in self._cache.all_of(PODS):
            self.pod_changed(key_of(pod), pod)
        for document in self._cache.all_of(WORKLOADS):
            self.workload_changed(key_of(document), document)
        for kind in (*KINDS, SETS):
            for document in self._cache.all_of(kind):
                self.work_queue.add(unit_of(kind, key_of(document)))
        for kind in OWNERS:
            for document in self._cache.all_of(kind):
                self.owner_changed(kind, key_of(document), document)

    def owner_changed(self, kind: Resource, key: str, document: Document | None) -> None:
        """Queue a Deployment, StatefulSet or LeaderWorkerSet that may have missed the webhook."""
        for unit in self._missed_owners.changed(kind, key, document):
            self.work_queue.add(unit, urgent=False)

    def pod_changed(self, key: str, document: Document | None) -> None:
        for unit in self._pods.changed(key, document):
            self._add(unit)
        for unit in self._gates.changed(key, document):
            self._add(unit)
        for unit in self._missed.changed(key, document):
            self._add(unit)

    def stateful_set_changed(self, key: str, document: Document | None) -> None:
        """Queue the group of the StatefulSet's pods, whose size it gives."""
        namespace, name = split_key(key)
        uid = str(document["metadata"].get("uid")) if document is not None else ""
        for group in {group_of_set(name), group_of_set(name, uid)}:
            self.work_queue.add(group_unit(f"{namespace}/{group}"), urgent=False)

    def job_changed(self, kind: Resource, key: str, document: Document | None) -> None:
        """Queue a job or a LeaderWorkerSet; after a suspended Job of another job also that one,
        which is evicted once the Job's pods are gone."""
        self.work_queue.add(unit_of(kind, key))
        if kind == JOBS and document is not None and is_suspended(KINDS[JOBS], document):
            namespace, _ = split_key(key)
            for one in above(self._cache, document, namespace):
                if (parent := kind_of(one)) is not None and parent in KINDS:
                    self.work_queue.add(unit_of(parent, key_of(one)), urgent=False)

    def runtime_changed(self, key: str, document: Document | None) -> None:
        """Queue all jobs whose pods are described by a training runtime."""
        for kind in (each for each in KINDS if isinstance(KINDS[each].pods, OfRuntime)):
            for job in self._cache.all_of(kind):
                self.work_queue.add(unit_of(kind, key_of(job)), urgent=False)

    def _add(self, unit: Unit) -> None:
        self.work_queue.add(unit)
        if unit.kind is UnitKind.GROUP and (above := self._set_of.get(unit.key)) is not None:
            self.work_queue.add(above)

    def workload_changed(self, key: str, document: Document | None) -> None:
        before = self._unit_of.get(key)
        unit = of_workload(document) if document is not None else None
        if before is not None and before != unit:
            self._of_unit[before].pop(key, None)
            if not self._of_unit[before]:
                del self._of_unit[before]
            self._add(before)
        if document is not None and (waits := self._prebuilt_for.pop(key, None)) is not None:
            self.work_queue.add(waits)
        self._note_set(key, document)
        if self._gates.has(placed_unit(key)):
            self.work_queue.add(placed_unit(key))
        if unit is not None:
            self._unit_of[key] = unit
            self._of_unit.setdefault(unit, {})[key] = None
            self.work_queue.add(unit)
        else:
            self._unit_of.pop(key, None)
            if document is not None and _is_to_reconcile(document):
                self.work_queue.add(unit_of(WORKLOADS, key))
            elif document is None and self._pods.of(group := group_unit(key)):
                self._add(group)  # The group may use the name now.

    def _note_set(self, key: str, document: Document | None) -> None:
        before = self._set_of.get(key)
        above = set_of(document) if document is not None else None
        if above is not None and above != before:
            self._set_of[key] = above
            self._of_unit.setdefault(above, {})[key] = None
        elif before is not None and document is None:
            del self._set_of[key]
            self._of_unit[before].pop(key, None)
            self.work_queue.add(before)

    def evicted_before(self, key: WorkloadKey) -> set[tuple[str, str]]:
        """Return reasons and causes of the evictions in a Workload's status."""
        status = (self._cache.get(WORKLOADS, key) or {}).get("status") or {}
        return {
            (str(one.get("reason") or ""), str(one.get("underlyingCause") or ""))
            for one in (status.get("schedulingStats") or {}).get("evictions") or ()
        }

    def runs(self, key: WorkloadKey) -> bool:
        """Return True if something may use an evicted Workload's quota, or is about to."""
        if key in self.workload_actions.starting:
            return True
        document = self._cache.get(WORKLOADS, key)
        if document is not None and not has_condition(document, EVICTED):
            return True  # The eviction is stored first: else the next reservation would hide it.
        unit = self._unit_of.get(key)
        if unit is None:
            # Its creator stops its pods, and then removes its admission.
            return document is not None
        if unit.kind in (UnitKind.POD, UnitKind.GROUP):
            return self._pods.runs(unit)
        return self._jobs.runs(unit)

    # -- one unit ---------------------------------------------------------------------------------

    async def _reconcile(self, unit: Unit) -> None:
        """Reconcile a unit by its kind, and queue it again if its objects were stale."""
        if not self._may_write():
            return
        match unit.kind:
            case UnitKind.JOB:
                again = await self._reconcile_job(unit)
            case UnitKind.POD | UnitKind.GROUP:
                self._note_prebuilt(unit)
                again = await self._pods.reconcile(unit, self._workloads_of(unit))
            case UnitKind.SET:
                again = await self._pods.reconcile_set(unit, self._workloads_of(unit))
            case UnitKind.PLACED:
                again = await self._gates.reconcile(unit)
            case UnitKind.MISSED:
                again = await self._missed.reconcile(unit)
            case UnitKind.OWNER:
                again = await self._missed_owners.reconcile(unit)
            case UnitKind.WORKLOAD:
                again = await self._reconcile_alone(unit)
            case _:
                assert_never(unit.kind)
        for workload in self._workloads_of(unit):
            if is_done_with(workload):
                await self._carefully(self.workload_actions.finalize(workload))
        if again:
            self.work_queue.add(unit)

    async def _reconcile_job(self, unit: Unit) -> bool:
        workloads = self._workloads_of(unit)
        self._note_prebuilt(unit)
        again = await self._jobs.reconcile(unit, workloads)
        job = self._cache.get(*unit.reference)
        if job is not None and is_elastic(job):
            made = self._made_by(unit, job)
            await self._pods.ungate_elastic((unit, *made), workloads)
        self._queue_maker(unit, job)
        return again

    def _made_by(self, unit: Unit, job: Document) -> Iterator[Unit]:
        """Yield what creates the pods of an elastic RayJob or RayService."""
        if unit.resource not in MADE:
            for kind in MADE:
                for one in made_by(self._cache, job, kind):
                    yield unit_of(kind, key_of(one))

    def _queue_maker(self, unit: Unit, job: Document | None) -> None:
        """Queue the elastic job that made a RayCluster or a Job: its size and pods are that job's;
        also once it is deleted."""
        if job is None:
            if (maker := self._maker_of.pop(unit, None)) is not None:
                self.work_queue.add(maker)
        elif unit.resource in MADE:
            for one in above(self._cache, job, split_key(unit.key)[0]):
                kind = kind_of(one)
                if kind is not None and kind not in MADE and is_elastic(one):
                    maker = self._maker_of[unit] = unit_of(kind, key_of(one))
                    self.work_queue.add(maker)

    def _workloads_of(self, unit: Unit) -> list[Document]:
        found = (self._cache.get(WORKLOADS, key) for key in list(self._of_unit.get(unit, ())))
        return [one for one in found if one is not None]

    def _note_prebuilt(self, unit: Unit) -> None:
        document = (
            self._cache.get(*unit.reference) if unit.kind in (UnitKind.JOB, UnitKind.POD) else None
        )
        if document is None and unit.kind is UnitKind.GROUP:
            document = next(iter(self._pods.of(unit)), None)
        if document is not None and (name := prebuilt_of(document)):
            self._prebuilt_for[f"{split_key(unit.key)[0]}/{name}"] = unit

    async def _reconcile_alone(self, unit: Unit) -> bool:
        """Reconcile a Workload without a known owner; returns False: its next change queues it."""
        workload = self._cache.get(WORKLOADS, unit.key)
        if workload is None:
            return False
        if is_leaving(workload) and not controller_of(workload):
            await self._carefully(self.workload_actions.delete(workload))
        elif is_done_with(workload):
            await self._carefully(self.workload_actions.finalize(workload))
        elif is_orphaned(workload):
            if self._is_job_there(workload):
                self.work_queue.add_after(unit, ORPHANED_S)
            else:
                self.workload_actions.finish(unit.key, OWNER_NOT_FOUND, "The owner was deleted")
        return False

    def _is_job_there(self, workload: Document) -> bool:
        """Return True if a job has the UID in the Workload's label: only the reference to it is
        lost, or the watch has not reported its deletion yet."""
        uid, namespace = labels_of(workload)[JOB_UID], workload["metadata"].get("namespace")
        return any(
            one["metadata"].get("uid") == uid and one["metadata"].get("namespace") == namespace
            for kind in FRAMEWORKS
            for one in self._cache.all_of(kind)
        )

    async def _carefully(self, write: Awaitable[None]) -> None:
        """Write a Workload; if it has changed meanwhile, its change is reconciled."""
        try:
            await write
        except ApiRefused as refused:
            if not refused.not_found and not refused.conflict:
                raise


def _is_to_reconcile(workload: Document) -> bool:
    """Return True for a Workload without a known owner for which something is to be done."""
    leaves = is_leaving(workload) and not controller_of(workload)
    return leaves or is_done_with(workload) or is_orphaned(workload)


def is_done_with(workload: Document) -> bool:
    """Return True for a finished Workload that still has the finalizer: it holds no quota, so it
    may be deleted at any time, also while there is no controller."""
    finalizers = workload["metadata"].get("finalizers") or ()
    return has_condition(workload, FINISHED) and IN_USE in finalizers and not is_leaving(workload)


def is_orphaned(workload: Document) -> bool:
    """Return True if the Workload was made for a job, and the job was deleted without it
    (`kubectl delete --cascade=orphan`)."""
    return (
        not workload["metadata"].get("ownerReferences")
        # A manager's copy has the label of the job there, and gets its own job once it is admitted.
        and ORIGIN not in labels_of(workload)
        and bool(labels_of(workload).get(JOB_UID))
        and not is_leaving(workload)
        and not has_condition(workload, FINISHED)
    )
