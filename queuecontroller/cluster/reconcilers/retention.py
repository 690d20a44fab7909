"""Deletes finished and deactivated Workloads after the times in Kueue's Configuration
(objectRetentionPolicies); without these, all are kept.

A finished Workload is deleted alone; a Workload that was deactivated by the queue is deleted
together with its job, as in Kueue. A Workload that its user deactivated is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    condition_of,
    has_condition,
    is_leaving,
    key_of,
    seconds_of,
    split_key,
)
from queuecontroller.cluster.cache.policy import Retention
from queuecontroller.cluster.reconcilers.units import (
    Unit,
    UnitKind,
    of_workload,
    owners_of,
    unit_of,
)
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.scheduler.model.reasons import DEACTIVATED_FOR, DELETED, EVICTED, FINISHED
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS

WIDTH: Final = 2
_LONGEST_S: Final = 86_400.0
"""Longest time between two checks, in case the clock is changed."""


@dataclass(frozen=True, slots=True)
class Due:
    at_s: float
    """Seconds since the epoch."""
    with_job: bool
    """True if the job is deleted, and its Workload with it."""


def due_of(workload: Document, retention: Retention) -> Due | None:
    """Return when a Workload is to be deleted; None: not in its present state."""
    if is_leaving(workload):
        return None
    if has_condition(workload, FINISHED):
        return _after(workload, FINISHED, retention.after_finished_s, with_job=False)
    reason = str(condition_of(workload, EVICTED).get("reason") or "")
    by_us = reason.startswith(DEACTIVATED_FOR) and has_condition(workload, EVICTED)
    if by_us and (workload.get("spec") or {}).get("active") is False:
        return _after(workload, EVICTED, retention.after_deactivated_s, with_job=True)
    return None


def _after(workload: Document, kind: str, seconds: float | None, with_job: bool) -> Due | None:
    since_s = seconds_of(condition_of(workload, kind).get("lastTransitionTime"))
    if seconds is None or since_s is None:
        return None
    return Due(since_s + seconds, with_job)


class RetentionSweeper:
    def __init__(
        self,
        workload_actions: WorkloadActions,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` returns seconds since the epoch."""
        self._actions = workload_actions
        self._cache = workload_actions.cache
        self._may_write = may_write
        self._now_s = now_s
        self._retention = workload_actions.cache.policy.retention
        self.work_queue: WorkQueue[str] = WorkQueue("old Workload", self._sweep, WIDTH)

    def add_all(self) -> None:
        for document in self._cache.all_of(WORKLOADS):
            self.changed(key_of(document), document)

    def changed(self, key: str, document: Document | None) -> None:
        if document is None or self._retention == Retention():
            return
        due = due_of(document, self._retention)
        if due is not None:
            self.work_queue.add_after(key, min(_LONGEST_S, max(0.0, due.at_s - self._now_s())))

    async def _sweep(self, key: str) -> None:
        workload = self._cache.get(WORKLOADS, key)
        due = due_of(workload, self._retention) if workload is not None else None
        if workload is None or due is None or not self._may_write():
            return
        if due.at_s > self._now_s():
            self.changed(key, workload)
            return
        try:
            if due.with_job:
                await self._delete_job(workload)
            else:
                await self._actions.delete(workload)
                text = "Deleted finished workload due to elapsed retention"
                self._actions.record(workload, WORKLOADS, KubernetesEvent(DELETED, text))
        except ApiRefused as refused:
            if not refused.not_found and not refused.conflict:
                raise
            await self._actions.look_again(WORKLOADS, key)
            self.changed(key, self._cache.get(WORKLOADS, key))

    async def _delete_job(self, workload: Document) -> None:
        """Delete the job or the pods of a Workload. A Workload without an owner is kept."""
        for unit in _owners(workload):
            document = self._cache.get(*unit.reference)
            if document is None or is_leaving(document):
                continue
            # The API server's default propagation for a Job would orphan its pods.
            await self._actions.remove(unit.resource, document, "Background")
            text = "Deleted job: deactivation retention period expired"
            self._actions.record(document, unit.resource, KubernetesEvent(DELETED, text))


def _owners(workload: Document) -> list[Unit]:
    namespace = split_key(key_of(workload))[0]
    unit = of_workload(workload)
    if unit is not None and unit.kind in (UnitKind.JOB, UnitKind.POD):
        return [unit]
    return [
        unit_of(PODS, f"{namespace}/{one.get('name')}")
        for one in owners_of(workload)
        if one.get("kind") == PODS.kind
    ]
