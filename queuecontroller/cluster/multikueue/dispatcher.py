"""Dispatches Workloads to the workers: carries out in this cluster what `decide` decides, and has
the connection of each worker carry out its part there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.admissionchecks.states import (
    Answer,
    State,
    check_by,
    checks_by,
    checks_of,
    state_of,
)
from queuecontroller.cluster.admissionchecks.status_writer import CheckStatusWriter
from queuecontroller.cluster.admissionchecks.stored import AnswersStored, Stored
from queuecontroller.cluster.cache.job_context import KINDS
from queuecontroller.cluster.cache.kinds import CHECKS, CLUSTER_QUEUES, WORKLOADS
from queuecontroller.cluster.cache.kinds import MULTIKUEUE_CLUSTERS as CLUSTERS
from queuecontroller.cluster.cache.kinds import MULTIKUEUE_CONFIGS as CONFIGS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.multikueue import CONTROLLER, MultiKueueSettings
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    has_condition,
    is_answered_by,
    key_of,
    split_key,
)
from queuecontroller.cluster.multikueue.clusters import Clusters
from queuecontroller.cluster.multikueue.copies import (
    job_owner,
    kind_of_job,
    status_patch,
    stopped_patch,
)
from queuecontroller.cluster.multikueue.decide import Decision, Facts, Want, Worker, decide
from queuecontroller.cluster.multikueue.worker import WorkerLink
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.frameworks import is_suspended
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.reasons import ACTIVE, MULTIKUEUE
from queuecontroller.state.figures import Figures
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource
from sluicecommon.reader import ManifestError

GROUP: Final = "kueue.x-k8s.io"
WIDTH: Final = 4
INVALID: Final = (400, 422)
WorkItem = tuple[Resource, str]
"""A Workload to be dispatched, or an AdmissionCheck or MultiKueueCluster whose condition is to be
written."""


class MultiKueue:
    def __init__(
        self,
        shell: Shell,
        mirror: Mirror,
        client: ApiClient,
        may_write: Callable[[], bool],
        recorder: EventRecorder,
        stored: Stored,
        settings: MultiKueueSettings,
        namespace: str,
    ) -> None:
        """`namespace` has the Secrets with the workers' kubeconfigs."""
        self._shell = shell
        self._cache = mirror.cache
        self._client = client
        self._may_write = may_write
        self._recorder = recorder
        self._settings = settings
        told = AnswersStored(
            shell, mirror, stored, lambda key: self.work_queue.add((WORKLOADS, key))
        )
        self._status_writer = CheckStatusWriter(client, mirror.cache, recorder, shell.now_ns, told)
        self.clusters = Clusters(
            client, mirror.cache, self._status_writer, settings, namespace, self._link
        )
        self.work_queue: WorkQueue[WorkItem] = WorkQueue("MultiKueue:", self._reconcile, WIDTH)
        self._of_job: dict[tuple[Resource, str], str] = {}
        """Key of the Workload of each job that is dispatched."""
        self._nominated_at_s: dict[str, float] = {}
        """When workers were last nominated, by the Workload's key."""
        self._chosen: dict[str, str] = {}
        """The worker that is to get each Workload's job."""

    def _link(self, name: str, client: ApiClient) -> WorkerLink:
        return WorkerLink(
            name,
            client,
            self._settings.origin,
            self._settings.gates_preemption,
            self._shell.now_ns,
            lambda key: self._wanted(name, key),
            self._worker_changed,
            self._may_write,
            self._count_dispatched,
        )

    @property
    def _figures(self) -> Figures:
        return self._shell.book.workloads.figures

    # -- changes ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Dispatch until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.work_queue.run())
                if self._settings.gc_interval_s:
                    group.create_task(self._collect())
        finally:
            await self.clusters.close()

    def add_all(self) -> None:
        for cluster in self._cache.all_of(CLUSTERS):
            self.work_queue.add((CLUSTERS, key_of(cluster)))
        for check in self._mine():
            self.check_changed(key_of(check), check)

    def workload_changed(self, key: str, document: Document | None) -> None:
        if document is None:
            self._nominated_at_s.pop(key, None)
            self._chosen.pop(key, None)
            if self.clusters.links:
                self.work_queue.add((WORKLOADS, key))
        elif self._check_of(document):
            self.work_queue.add((WORKLOADS, key))

    def job_changed(self, kind: Resource, key: str, document: Document | None) -> None:
        mine = self._of_job.get((kind, key))
        if mine is not None:
            self.work_queue.add((WORKLOADS, mine))
            if document is None:
                del self._of_job[kind, key]

    def check_changed(self, key: str, document: Document | None) -> None:
        self.work_queue.add((CHECKS, key))
        for workload in self._cache.all_of(WORKLOADS):
            if key in checks_of(workload):
                self.work_queue.add((WORKLOADS, key_of(workload)), urgent=False)

    def config_changed(self, key: str, document: Document | None) -> None:
        for check in self._mine():
            if _parameters(check).get("name") == key:
                self.check_changed(key_of(check), check)

    def cluster_changed(self, key: str, document: Document | None) -> None:
        self.work_queue.add((CLUSTERS, key))
        self._add_checks_of(key)

    def _add_checks_of(self, cluster: str) -> None:
        for check in self._mine():
            if cluster in self._configured(key_of(check)):
                self.work_queue.add((CHECKS, key_of(check)))

    def _worker_changed(self, name: str, key: str) -> None:
        if key:
            self.work_queue.add((WORKLOADS, key))
            return
        self.work_queue.add((CLUSTERS, name))
        link = self.clusters.links.get(name)
        keys = {key_of(one) for one in self._cache.all_of(WORKLOADS) if self._check_of(one)}
        for one in keys | (link.workload_keys() if link is not None else set()):
            self.work_queue.add((WORKLOADS, one), urgent=False)

    async def _collect(self) -> None:
        """Look for orphans: copies whose Workload does not exist here any more."""
        while True:
            await asyncio.sleep(self._settings.gc_interval_s)
            for link in list(self.clusters.links.values()):
                for key in link.workload_keys():
                    if self._cache.get(WORKLOADS, key) is None:
                        self.work_queue.add((WORKLOADS, key), urgent=False)

    # -- facts ------------------------------------------------------------------------------------

    def _mine(self) -> list[Document]:
        return checks_by(self._cache, CONTROLLER)

    def _check_of(self, workload: Document) -> str:
        """Return the name of the Workload's check of this controller; "" if it has none."""
        return check_by(self._cache, CONTROLLER, workload)

    def _config(self, check: str) -> tuple[list[str], str]:
        """Return the names of the workers of a check, and the error in its parameters."""
        document = self._cache.get(CHECKS, check)
        if document is None:
            return [], "there is no such check"
        named = _parameters(document)
        if (named.get("apiGroup"), named.get("kind")) != (GROUP, CONFIGS.kind):
            return [], f"spec.parameters: name a {CONFIGS.kind} of {GROUP}"
        config = self._cache.get(CONFIGS, str(named.get("name")))
        if config is None:
            return [], f"there is no {CONFIGS.kind} {named.get('name')}"
        return [str(one) for one in (config.get("spec") or {}).get("clusters") or ()], ""

    def _configured(self, check: str) -> list[str]:
        return self._config(check)[0] if check else []

    def _facts(self, key: str) -> Facts:
        workload = self._cache.get(WORKLOADS, key)
        check = self._check_of(workload) if workload is not None else ""
        configured = self._configured(check)
        workers = {name: Worker(self.clusters.lost_s(name)) for name in configured}
        for name, link in self.clusters.links.items():
            copy, job = link.copy(key), link.job(key)
            if name in workers or copy is not None or job is not None:
                refusal = link.refusals.get(key, "")
                workers[name] = Worker(link.lost_s, copy, job, refusal)
        others_ready = workload is None or all(
            state_of(one) == State.READY
            for name, one in checks_of(workload).items()
            if name != check
        )
        since_s = monotonic() - self._nominated_at_s.get(key, monotonic())
        job = self._job_of(workload) if workload is not None else None
        chosen = self._chosen.get(key, "")
        now_s = self._shell.now_ns() / 1e9
        return Facts(
            workload, job, check, workers, configured, since_s, others_ready, chosen, now_s
        )

    def _decide(self, key: str) -> tuple[Facts, Decision]:
        facts = self._facts(key)
        decision = decide(facts, self._settings)
        for name, want in decision.want.items():
            if want is Want.JOB:
                self._chosen[key] = name
        return facts, decision

    def _job_of(self, workload: Document) -> Document | None:
        kind, owner = kind_of_job(workload), job_owner(workload)
        if kind is None:
            return None
        namespace, _ = split_key(key_of(workload))
        job_key = f"{namespace}/{owner.get('name')}"
        self._of_job[kind, job_key] = key_of(workload)
        found = self._cache.get(kind, job_key)
        same = found is not None and found["metadata"].get("uid") == owner.get("uid")
        return found if same else None

    def _wanted(self, name: str, key: str) -> tuple[Want | None, Document | None, Document | None]:
        facts, decision = self._decide(key)
        return decision.want.get(name), facts.workload, facts.job

    # -- one object -------------------------------------------------------------------------------

    async def _reconcile(self, item: WorkItem) -> None:
        if not self._may_write():
            return
        kind, key = item
        if kind == CLUSTERS:
            again_s = await self.clusters.reconcile(key)
            self._add_checks_of(key)
            if again_s is not None:
                self.work_queue.add_after(item, again_s)
        elif kind == CHECKS:
            await self._write_active(key)
        else:
            await self._dispatch(key)

    async def _dispatch(self, key: str) -> None:
        facts, decision = self._decide(key)
        for name in decision.want:
            link = self.clusters.links.get(name)
            if link is not None:
                link.work_queue.add(key)
        if decision.again_s is not None:
            self.work_queue.add_after((WORKLOADS, key), decision.again_s)
        workload = facts.workload
        if workload is None:
            return
        await self._copy_status(facts, decision)
        if decision.finished is not None:
            self._finish(key, *decision.finished)
            return
        await self._write(key, workload, facts, decision)

    async def _write(self, key: str, workload: Document, facts: Facts, decision: Decision) -> None:
        more = _names_patch(workload, decision)
        answers: dict[str, Answer] = {}
        if decision.answer is not None:
            answers = {facts.check: decision.answer}
        if not answers and not more:
            return
        before = state_of(checks_of(workload).get(facts.check) or {})
        if not await self._status_writer.write_answers(workload, answers, more):
            return
        if decision.nominated is not None:
            self._nominated_at_s[key] = monotonic()
        answer = decision.answer
        if answer is None or answer.state == before:
            return
        queue = _queue_of(workload)
        if answer.state == State.READY and decision.cluster is not None:
            self._figures.remote_admitted.add(queue, decision.cluster)
        elif answer.state == State.RETRY:
            self._figures.remote_evicted.add(queue, _cluster_of(workload))
        if answer.state in (State.READY, State.RETRY):
            self._recorder.record(workload, WORKLOADS, KubernetesEvent(MULTIKUEUE, answer.message))

    async def _copy_status(self, facts: Facts, decision: Decision) -> None:
        """Copy the status of the job in the worker; after an eviction remove what it left."""
        workload, job = facts.workload, facts.job
        kind = kind_of_job(workload) if workload is not None else None
        if job is None or kind is None:
            return
        patch: dict[str, Any] = {}
        stopped = is_suspended(KINDS[kind], job)
        try:
            if decision.status_of is not None:
                there = facts.workers[decision.status_of].job
                # The API server refuses the status of a running Job for one that is suspended.
                if there is not None and (not stopped or decision.finished is not None):
                    patch = status_patch(kind, job, there)
            elif decision.is_home and stopped:
                patch = stopped_patch(kind, job)
            if patch:
                self._cache.update(kind, await self._status_writer.patch(kind, job, patch))
        except ManifestError:
            return  # Nested too deep to be compared.
        except ApiRefused as refused:
            if refused.status not in INVALID and not refused.not_found:
                raise

    def _finish(self, key: str, reason: str, message: str) -> None:
        mine = WorkloadKey(key)
        if mine in self._shell.book.workloads.records:
            self._shell.step(
                "finished",
                lambda book, now_ns: book.workloads.finish(mine, reason, message, now_ns),
            )

    def _count_dispatched(self, name: str, workload: Document) -> None:
        self._figures.dispatched.add(_queue_of(workload), name)

    # -- the check itself -------------------------------------------------------------------------

    async def _write_active(self, name: str) -> None:
        check = self._cache.get(CHECKS, name)
        if check is None or not is_answered_by(check, CONTROLLER):
            return
        clusters, error = self._config(name)
        found = {one: self._cache.get(CLUSTERS, one) for one in clusters}
        self._note_status(name, found)
        missing = [one for one, document in found.items() if document is None]
        inactive = [
            one
            for one, document in found.items()
            if document is not None and not has_condition(document, ACTIVE)
        ]
        active, reason, message = True, ACTIVE, "The admission check is active"
        if error:
            active, reason = False, "BadConfig"
            message = f"Cannot load the AdmissionChecks parameters: {error}"
        elif missing or inactive:
            active = len(missing) + len(inactive) < len(clusters)
            reason = "SomeActiveClusters" if active else "NoUsableClusters"
            parts = (("Missing", missing), ("Inactive", inactive))
            message = ", ".join(
                f"{what} clusters: [{' '.join(names)}]" for what, names in parts if names
            )
        await self._status_writer.write_condition(CHECKS, check, active, reason, message)

    def _note_status(self, check: str, clusters: Mapping[str, Document | None]) -> None:
        """Note the condition of each worker for the metrics, by the ClusterQueues that use it."""
        for queue in self._cache.all_of(CLUSTER_QUEUES):
            strategy = (queue.get("spec") or {}).get("admissionChecksStrategy") or {}
            if all(one.get("name") != check for one in strategy.get("admissionChecks") or ()):
                continue
            self._figures.workers[key_of(queue)] = {
                name: str(condition_of(one, ACTIVE).get("status") or "Unknown")
                for name, one in clusters.items()
                if one is not None
            }


def _parameters(check: Document) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (check.get("spec") or {}).get("parameters") or {}
    return found


def _queue_of(workload: Document) -> str:
    admission = (workload.get("status") or {}).get("admission") or {}
    return str(admission.get("clusterQueue") or "")


def _cluster_of(workload: Document) -> str:
    return str((workload.get("status") or {}).get("clusterName") or "")


def _names_patch(workload: Document, decision: Decision) -> dict[str, Any]:
    """Return the part of a status patch that names workers; empty if nothing changes."""
    status = workload.get("status") or {}
    before = tuple(status.get("nominatedClusterNames") or ())
    if decision.is_home:
        names = ("clusterName", "nominatedClusterNames")
        return {name: None for name in names if status.get(name)}
    if decision.cluster is not None and status.get("clusterName") != decision.cluster:
        return {"clusterName": decision.cluster, "nominatedClusterNames": None}
    if decision.nominated is not None and decision.nominated != before:
        return {"nominatedClusterNames": list(decision.nominated) or None}
    return {}
