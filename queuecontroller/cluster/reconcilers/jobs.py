"""Reconciler of jobs with a field to suspend them: carries out the actions of
`frameworks.reconcile`.

A job is started only by what the API server has stored: its Workload is Admitted there, and the
book has not revoked that since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.cache.job_context import KINDS, made_jobs_active
from queuecontroller.cluster.cache.kinds import ELASTIC_PODS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    controller_of,
    has_condition,
    key_of,
    split_key,
    version_of,
)
from queuecontroller.cluster.reconcilers.contention import Contention
from queuecontroller.cluster.reconcilers.units import Unit
from queuecontroller.cluster.reconcilers.workload_actions import INVALID, WorkloadActions
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.frameworks import (
    Action,
    PodSetInfo,
    ReleaseQuota,
    ResetStartTime,
    Restore,
    Start,
    Suspend,
    is_active,
    is_elastic,
    is_managed,
    is_suspended,
    prebuilt_of,
    reconcile,
    reconcile_slices,
    runs_elsewhere,
    start_patch,
    workload_name,
)
from queuecontroller.frameworks.names import ELASTIC_GATE, POD_SET, WORKLOAD
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    CONTESTED,
    FAILED_TO_START,
    FINISHED,
    STARTED,
    STOPPED,
)
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS
from sluicecommon.reader import ManifestError

GATE: Final = (ELASTIC_GATE,)
RUNNING_PODS: Final = "status.phase!=Succeeded,status.phase!=Failed"
TERMINATING_S: Final = 1.0
"""Seconds until pods that terminate are looked for again."""


class Jobs:
    def __init__(self, workload_actions: WorkloadActions, add: Callable[[Unit], None]) -> None:
        self._actions = workload_actions
        self._add = add
        self._contest = Contention()
        self._cache = workload_actions.cache

    def runs(self, unit: Unit) -> bool:
        """Return True if the job has pods, or may create some."""
        document = self._cache.get(*unit.reference)
        if document is None:
            return False
        framework = KINDS[unit.resource]
        if not is_suspended(framework, document):
            return True
        if is_active(framework, document) and not runs_elsewhere(framework, document):
            return True
        return made_jobs_active(self._cache, document)

    async def reconcile(self, unit: Unit, workloads: Iterable[Document]) -> bool:
        """Reconcile a job with the Workloads that it owns; returns True to be queued again."""
        document = self._cache.get(*unit.reference)
        mine: list[Document] = []
        for workload in workloads:
            uid = controller_of(workload).get("uid")
            if document is not None and uid == document["metadata"].get("uid"):
                mine.append(workload)
            elif await self._is_there(unit, uid) or await self._carry_out(unit, None, [workload]):
                return True
        if document is None:
            self._actions.forget(*unit.reference)
            self._contest.forget(unit)
            return False
        if not mine:
            mine = await self._find_workload(unit, document)
        return await self._carry_out(unit, document, mine)

    async def _find_workload(self, unit: Unit, document: Document) -> list[Document]:
        """Return its Workload that the watch has not reported yet, or a prebuilt one."""
        namespace, _ = split_key(unit.key)
        framework = KINDS[unit.resource]
        if name := prebuilt_of(document):
            known = self._cache.get(WORKLOADS, f"{namespace}/{name}")
            return [known] if known is not None else []
        setting = self._actions.setting(document)
        if is_suspended(framework, document) or not is_managed(framework, document, setting):
            return []
        if is_elastic(document):
            return []
        try:
            name = workload_name(framework, document, longest=setting.longest_name)
        except ManifestError:
            return []
        # Read before the job is suspended for lack of a Workload.
        found = await self._actions.find(namespace, name)
        uid = document["metadata"].get("uid")
        return [found] if found and controller_of(found).get("uid") == uid else []

    async def _is_there(self, unit: Unit, uid: object) -> bool:
        """Ask the API server for the job: its watch may be behind that of Workloads."""
        found = await self._actions.look(*unit.reference)
        if found is None:
            return False
        self._cache.update(unit.resource, found)
        return bool(found["metadata"].get("uid") == uid)

    async def _carry_out(
        self, unit: Unit, document: Document | None, workloads: Sequence[Document]
    ) -> bool:
        again = False
        for workload, action in self._next_actions(unit, document, workloads):
            try:
                again = await self._do(action, unit, document, workload) or again
            except ApiRefused as refused:
                if not refused.not_found and not refused.conflict:
                    raise
                again = await self._actions.look_again(*unit.reference)
                if workload is not None:
                    again = await self._actions.look_again(WORKLOADS, key_of(workload)) or again
                return again
        return again

    def _next_actions(
        self, unit: Unit, document: Document | None, workloads: Sequence[Document]
    ) -> list[tuple[Document | None, Action]]:
        framework = KINDS[unit.resource]
        if document is None:
            return [(one, act) for one in workloads for act in reconcile(framework, None, one)]
        setting = self._actions.setting(document)
        if is_elastic(document):
            return reconcile_slices(framework, document, workloads, setting)
        mine = max(workloads, key=_precedence) if workloads else None
        return [(mine, act) for act in reconcile(framework, document, mine, setting)]

    async def _do(
        self, action: Action, unit: Unit, document: Document | None, workload: Document | None
    ) -> bool:
        """Carry out an action: on the job here, on its Workload in WorkloadActions.

        Returns True if the job has changed.
        """
        match action:
            case Start():
                assert document is not None
                assert workload is not None
                return await self._start(unit, document, workload)
            case Suspend(patch, why):
                assert document is not None
                return await self._suspend(unit, document, patch, why)
            case Restore(patch):
                assert document is not None
                return await self._patch(unit, document, patch)
            case ResetStartTime(patch):
                assert document is not None
                return await self._patch(unit, document, patch, "status")
            case ReleaseQuota() if workload and await self._has_pods(unit, workload):
                asyncio.get_running_loop().call_later(TERMINATING_S, self._add, unit)
                return False
            case _:
                await self._actions.do(action, workload, unit.resource, document)
                return False

    async def _has_pods(self, unit: Unit, workload: Document) -> bool:
        """Read whether an evicted job still has pods, where its status does not tell."""
        framework, actions = KINDS[unit.resource], self._actions
        namespace, name = split_key(unit.key)
        if framework.pods_label:
            label = f"{framework.pods_label}={name}"
            return await actions.is_any(PODS, namespace, label, RUNNING_PODS)
        if not framework.pods_by_workload:
            return False
        pod_sets = ",".join(str(one.get("name", "main")) for one in workload["spec"]["podSets"])
        its = WORKLOAD, str(workload["metadata"]["name"])
        return await actions.is_any(
            PODS, namespace, f"{POD_SET} in ({pod_sets})", RUNNING_PODS, its
        )

    async def _suspend(
        self, unit: Unit, document: Document, patch: Mapping[str, Any], why: str
    ) -> bool:
        rest_s = self._contest.rest_s(unit, monotonic())
        if rest_s:
            asyncio.get_running_loop().call_later(rest_s, self._add, unit)
            return False
        changed = await self._patch(unit, document, patch)
        if self._contest.is_contested(unit, monotonic()):
            text = f"another controller keeps unsuspending this job: {why}"
            self._actions.record(
                document, unit.resource, KubernetesEvent(CONTESTED, text, warning=True)
            )
        else:
            self._actions.record(document, unit.resource, KubernetesEvent(STOPPED, why))
        return changed

    async def _patch(
        self, unit: Unit, document: Document, patch: Mapping[str, Any], part: str = ""
    ) -> bool:
        if patch:
            await self._actions.patch(unit.resource, document, patch, part)
        return bool(patch)

    async def _start(self, unit: Unit, document: Document, workload: Document) -> bool:
        workload_actions, key = self._actions, key_of(workload)
        if not workload_actions.may_run(workload):
            return False  # The admission was revoked meanwhile; that is written next.
        workload_actions.starting.add(key)
        changed = False
        try:
            infos = self._infos(unit, document, workload)
            patch = start_patch(
                KINDS[unit.resource], document, infos, workload_actions.setting(document).runtime
            )
            changed = await self._patch(unit, document, patch)
        except (ManifestError, ApiRefused) as error:
            if isinstance(error, ApiRefused) and error.status != INVALID:
                raise
            workload_actions.finish(key, FAILED_TO_START, str(error))
            workload_actions.record(
                document, unit.resource, KubernetesEvent(FAILED_TO_START, str(error), warning=True)
            )
            return False
        finally:
            workload_actions.starting.discard(key)
        after = self._cache.get(*unit.reference)
        if after is not None and not is_suspended(KINDS[unit.resource], after):
            queue = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue")
            workload_actions.record(
                after, unit.resource, KubernetesEvent(STARTED, f"Admitted by clusterQueue {queue}")
            )
        return changed

    def _infos(self, unit: Unit, document: Document, workload: Document) -> list[PodSetInfo]:
        """Return what the admission gives each pod set.

        Pods of an elastic job get a gate each: pods created later wait for a slice that has them.
        """
        if not is_elastic(document):
            return self._actions.infos(workload)
        return [
            replace(one, labels={**one.labels, ELASTIC_PODS: "true"})
            for one in self._actions.infos(workload, GATE)
        ]


def _precedence(workload: Document) -> tuple[bool, bool, int]:
    """Sort key of several Workloads of a job: not finished first, then admitted, then newer."""
    over = has_condition(workload, FINISHED)
    return not over, has_condition(workload, ADMITTED), version_of(workload)
