"""Holds, starts, stops and forgets jobs as their Workloads say: carries out what `jobs.reconcile`
finds is to be done.

A job is let run only by what the API server has stored: its Workload says Admitted, and the book
has not changed its mind since. While that write is under way, and until a job that was stopped has
no pods any more, its quota stays with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from queuecontroller.engine.model import WorkloadKey
from queuecontroller.engine.workload_info import EVICTED, FINISHED, PODS_READY
from queuecontroller.jobs import (
    Action,
    CreateWorkload,
    DeleteWorkload,
    FinishWorkload,
    PriorityClass,
    Refuse,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    SetPodsReady,
    Setting,
    Start,
    Suspend,
    UpdateReclaimable,
    UpdateWorkload,
    is_active,
    is_suspended,
    pod_set_infos,
    prebuilt_of,
    reconcile,
    start_patch,
)
from queuecontroller.reader import ManifestError
from queuecontroller.service.book import Book
from queuecontroller.service.conditions import with_condition
from queuecontroller.service.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource

from .around import KINDS, kind_of, setting
from .errands import Errands
from .kinds import FLAVORS, IN_USE, WORKLOADS
from .mirror import Mirror
from .teller import Teller
from .telling import Told
from .workload_status import holds
from .world import (
    Document,
    controller_of,
    has_condition,
    is_leaving,
    key_of,
    pruned,
    split_key,
    version_of,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
WIDTH: Final = 12
INVALID: Final = 422
FAILED_TO_START: Final = "FailedToStart"


class JobKey(NamedTuple):
    kind: Resource
    key: str


class Tending:
    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        teller: Teller,
    ) -> None:
        self._shell = shell
        self._mirror = mirror
        self._world = mirror.world
        self._client = client
        self._may_write = may_write
        self._teller = teller
        self.errands: Errands[JobKey] = Errands("job", self._tend, WIDTH)
        self._job_of: dict[str, JobKey] = {}
        """By Workload: whom it belongs to."""
        self._of_job: dict[JobKey, dict[str, None]] = {}
        self._starting: set[str] = set()
        """Workloads whose job is being let run."""
        self._refused: dict[JobKey, str] = {}
        """Versions of jobs of which no Workload can be made: told once."""
        self.writes_total = 0
        shell.book.workloads.runs_elsewhere = self.runs
        shell.book.workloads.asks_checks_again = True

    # -- what is heard ----------------------------------------------------------------------------

    def ask_all(self) -> None:
        for document in self._world.all_of(WORKLOADS):
            self.workload_changed(key_of(document), document)
        for kind in KINDS:
            for document in self._world.all_of(kind):
                self.errands.ask(JobKey(kind, key_of(document)))

    def job_changed(self, kind: Resource, key: str) -> None:
        self.errands.ask(JobKey(kind, key))

    def workload_changed(self, key: str, document: Document | None) -> None:
        before = self._job_of.get(key)
        job = self._owner(document) if document is not None else None
        if before is not None and before != job:
            self._of_job[before].pop(key, None)
            if not self._of_job[before]:
                del self._of_job[before]
            self.errands.ask(before)
        if job is not None:
            self._job_of[key] = job
            self._of_job.setdefault(job, {})[key] = None
            self.errands.ask(job)
        else:
            self._job_of.pop(key, None)
            if document is not None:
                self._tend_alone(key, document)

    def _owner(self, workload: Document) -> JobKey | None:
        owner = controller_of(workload)
        kind = kind_of(owner)
        if kind is None:
            return None
        return JobKey(kind, f"{workload['metadata']['namespace']}/{owner.get('name')}")

    def _tend_alone(self, key: str, workload: Document) -> None:
        """Of nobody we know: it is let go once it is deleted, and back in line once it is evicted
        and nobody owns it."""
        if is_leaving(workload) and not controller_of(workload):
            self.errands.ask(JobKey(WORKLOADS, key))

    def runs(self, key: WorkloadKey) -> bool:
        """Whether something may be running on a Workload's quota, or is about to."""
        if key in self._starting:
            return True
        job = self._job_of.get(key)
        if job is None:
            workload = self._world.get(WORKLOADS, key)
            # Whoever made it stops its pods, and says so by taking its admission from it.
            return workload is not None and bool(controller_of(workload))
        document = self._world.get(job.kind, job.key)
        if document is None:
            return False
        framework = KINDS[job.kind]
        return not is_suspended(framework, document) or is_active(framework, document)

    # -- one job ----------------------------------------------------------------------------------

    async def _tend(self, job: JobKey) -> None:
        if not self._may_write():
            return
        if job.kind == WORKLOADS:
            await self._let_go(job.key)
            return
        document = self._world.get(job.kind, job.key)
        mine: Document | None = None
        for key in list(self._of_job.get(job, ())):
            workload = self._world.get(WORKLOADS, key)
            if workload is None:
                continue
            uid = controller_of(workload).get("uid")
            if document is not None and uid == document["metadata"].get("uid"):
                if mine is None or _counts_more(workload, mine):
                    mine = workload
            elif not await self._is_there(job, uid):
                await self._carry_out(job, None, workload)
            else:
                self.errands.ask(job)
                return
        if document is None:
            self._refused.pop(job, None)
            return
        if mine is None and (name := prebuilt_of(document)):
            mine = self._world.get(WORKLOADS, f"{split_key(job.key)[0]}/{name}")
        await self._carry_out(job, document, mine)

    async def _is_there(self, job: JobKey, uid: object) -> bool:
        """Asked of the API server: the watch of jobs may be behind that of Workloads."""
        namespace, name = split_key(job.key)
        try:
            found = pruned(await self._client.get(job.kind, name, namespace))
        except ApiRefused as refused:
            if refused.not_found:
                return False
            raise
        self._world.take(job.kind, found)
        return bool(found["metadata"].get("uid") == uid)

    async def _carry_out(
        self, job: JobKey, document: Document | None, workload: Document | None
    ) -> None:
        framework = KINDS[job.kind]
        around = self._around(document) if document is not None else Setting()
        for action in reconcile(framework, document, workload, around):
            try:
                await self._do(action, job, document, workload)
            except ApiRefused as refused:
                if refused.not_found or refused.conflict:
                    await self._look_again(job, workload)
                    return
                raise

    async def _do(
        self,
        action: Action,
        job: JobKey,
        document: Document | None,
        workload: Document | None,
    ) -> None:
        match action:
            case CreateWorkload(made):
                await self._create(made)
            case UpdateWorkload(patch):
                assert workload is not None
                await self._patch_workload(workload, patch)
            case DeleteWorkload():
                assert workload is not None
                await self._delete(workload)
            case FinishWorkload(done):
                assert workload is not None
                self._finish(key_of(workload), done.reason, done.message)
            case ReleaseQuota():
                assert workload is not None
                key = WorkloadKey(key_of(workload))
                self._step(
                    "stopped", lambda book, now_ns: book.workloads.complete_eviction(key, now_ns)
                )
            case UpdateReclaimable(pods):
                assert workload is not None
                self._set_reclaimable(key_of(workload), pods)
            case SetPodsReady(ready):
                assert workload is not None
                self._set_ready(key_of(workload), ready)
            case Start():
                assert document is not None
                assert workload is not None
                await self._start(job, document, workload)
            case Suspend(patch, why):
                assert document is not None
                await self._patch_job(job, document, patch)
                self._teller.tell(document, job.kind, Told("Stopped", why))
            case Restore(patch):
                assert document is not None
                await self._patch_job(job, document, patch)
            case ResetStartTime(patch):
                assert document is not None
                await self._patch_job(job, document, patch, "status")
            case Refuse(problems):
                assert document is not None
                self._refuse(job, document, "; ".join(map(str, problems)))

    # -- its Workload -----------------------------------------------------------------------------

    async def _create(self, made: Mapping[str, Any]) -> None:
        namespace = made["metadata"]["namespace"]
        self.writes_total += 1
        try:
            found = await self._client.create(WORKLOADS, made, namespace)
        except ApiRefused as refused:
            if refused.status != 409:
                raise
            found = await self._client.get(WORKLOADS, made["metadata"]["name"], namespace)
        self._take_workload(pruned(found))

    async def _patch_workload(self, workload: Document, patch: Mapping[str, Any]) -> None:
        head = workload["metadata"]
        self.writes_total += 1
        found = await self._client.merge_patch(
            WORKLOADS,
            head["name"],
            patch,
            head["namespace"],
            resource_version=str(head["resourceVersion"]),
        )
        self._take_workload(pruned(found))

    def _take_workload(self, found: Document) -> None:
        key = key_of(found)
        if is_leaving(found) and not found["metadata"].get("finalizers"):
            return  # gone with that: the watch will say so
        if self._world.take(WORKLOADS, found):
            self._step("workload", lambda book, now_ns: self._mirror.workload(key, found, now_ns))
        self.workload_changed(key, found)

    async def _delete(self, workload: Document) -> None:
        head = workload["metadata"]
        if IN_USE in (head.get("finalizers") or ()):
            await self._without_finalizer(workload)
        if not is_leaving(workload):
            self.writes_total += 1
            await self._client.delete(WORKLOADS, head["name"], head["namespace"], head["uid"])

    async def _without_finalizer(self, workload: Document) -> None:
        found = workload["metadata"].get("finalizers") or ()
        left = [one for one in found if one != IN_USE]
        await self._patch_workload(workload, {"metadata": {"finalizers": left}})

    async def _let_go(self, key: str) -> None:
        workload = self._world.get(WORKLOADS, key)
        if workload is not None and is_leaving(workload):
            try:
                await self._delete(workload)
            except ApiRefused as refused:
                if not refused.not_found and not refused.conflict:
                    raise

    # -- the book ---------------------------------------------------------------------------------

    def _step(self, label: str, call: Callable[[Book, int], T]) -> T:
        return self._shell.step(label, call)

    def _finish(self, key: str, reason: str, message: str) -> None:
        mine = WorkloadKey(key)
        if mine in self._shell.book.workloads.records:
            self._step(
                "finished",
                lambda book, now_ns: book.workloads.finish(mine, reason, message, now_ns),
            )

    def _set_reclaimable(self, key: str, pods: Mapping[str, int]) -> None:
        mine = WorkloadKey(key)
        record = self._shell.book.workloads.records.get(mine)
        if record is None or dict(record.workload.reclaimable_pods) == dict(pods):
            return
        workload = replace(record.workload, reclaimable_pods=dict(pods))
        self._step(
            "reclaimable", lambda book, now_ns: book.workloads.change(mine, workload, now_ns)
        )

    def _set_ready(self, key: str, ready: bool) -> None:
        mine, book = WorkloadKey(key), self._shell.book
        record = book.workloads.records.get(mine)
        if record is None or book.settings.pods_ready.timeout_s is None:
            return
        if record.workload.is_true(PODS_READY) == ready:
            return
        text = "All pods are ready or succeeded" if ready else "Not all pods are ready or succeeded"
        reason = "Started" if ready else "WaitForStart"
        workload = with_condition(
            record.workload, PODS_READY, ready, reason, text, self._shell.now_ns()
        )
        self._step("ready", lambda book, now_ns: book.workloads.change(mine, workload, now_ns))

    # -- the job ----------------------------------------------------------------------------------

    async def _start(self, job: JobKey, document: Document, workload: Document) -> None:
        key = WorkloadKey(key_of(workload))
        record = self._shell.book.workloads.records.get(key)
        if record is None or not holds(record.workload) or record.workload.is_true(EVICTED):
            return  # it was taken from it meanwhile, which will be written
        self._starting.add(key)
        try:
            flavors = {one["metadata"]["name"]: one for one in self._world.all_of(FLAVORS)}
            infos = pod_set_infos(workload, flavors)
            patch = start_patch(KINDS[job.kind], document, infos)
            await self._patch_job(job, document, patch)
        except (ManifestError, ApiRefused) as error:
            if isinstance(error, ApiRefused) and error.status != INVALID:
                raise
            self._finish(key, FAILED_TO_START, str(error))
            self._teller.tell(document, job.kind, Told(FAILED_TO_START, str(error), warning=True))
            return
        finally:
            self._starting.discard(key)
        after = self._world.get(job.kind, job.key)
        if after is not None and not is_suspended(KINDS[job.kind], after):
            queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue")
            self._teller.tell(after, job.kind, Told("Started", f"Admitted by clusterQueue {queue}"))

    async def _patch_job(
        self, job: JobKey, document: Document, patch: Mapping[str, Any], part: str = ""
    ) -> None:
        if not patch:
            return
        head = document["metadata"]
        self.writes_total += 1
        found = await self._client.merge_patch(
            job.kind,
            head["name"],
            patch,
            head["namespace"],
            part,
            resource_version=str(head["resourceVersion"]),
        )
        self._world.take(job.kind, pruned(found))
        self.errands.ask(job)  # with what it is now

    def _refuse(self, job: JobKey, document: Document, why: str) -> None:
        told = f"{document['metadata'].get('generation')} {why}"
        if self._refused.get(job) != told:
            self._refused[job] = told
            self._teller.tell(document, job.kind, Told("ErrWorkloadCompose", why, warning=True))

    async def _look_again(self, job: JobKey, workload: Document | None) -> None:
        """Somebody changed the one or the other meanwhile: as they are now."""
        for kind, key in ((job.kind, job.key), (WORKLOADS, key_of(workload) if workload else "")):
            known = self._world.get(kind, key)
            if known is None:
                continue
            namespace, name = split_key(key)
            try:
                found = pruned(await self._client.get(kind, name, namespace))
            except ApiRefused as refused:
                if not refused.not_found:
                    raise
                continue  # the watch will say that it is gone
            if version_of(found) > version_of(known):
                if kind == WORKLOADS:
                    self._take_workload(found)
                else:
                    self._world.take(kind, found)
                self.errands.ask(job)

    # -- what is around it ------------------------------------------------------------------------

    def _around(self, document: Document) -> Setting:
        namespace = document["metadata"].get("namespace") or ""
        return setting(self._world, document, namespace, self._priority_of)

    def _priority_of(self, named: PriorityClass | None) -> int | None:
        priorities = self._shell.book.catalogue.priorities()
        if named is None:
            return priorities.default or None
        classes = (
            priorities.workload_classes
            if named.kind == "WorkloadPriorityClass"
            else priorities.pod_classes
        )
        return classes.get(named.name)


def _counts_more(one: Document, other: Document) -> bool:
    """Of two Workloads of one job: the one that is not over, then the newer."""
    over = has_condition(one, FINISHED), has_condition(other, FINISHED)
    return over[1] if over[0] != over[1] else version_of(one) > version_of(other)
