"""Follows changes of priority classes: Workloads get the new value of their WorkloadPriorityClass,
and jobs that named a class before it existed are reconciled again.

A Workload's own priority may be changed by hand; as in Kueue the value of its class replaces that
when the class changes, and when another replica takes the lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from queuecontroller.cluster.cache.kinds import PRIORITY_CLASSES, WORKLOADS
from queuecontroller.cluster.cache.objects import Document, has_condition, is_leaving, key_of
from queuecontroller.cluster.reconcilers.units import Unit, of_pod, unit_of
from queuecontroller.cluster.reconcilers.workload_actions import NEVER, WorkloadActions
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.frameworks import UpdateWorkload
from queuecontroller.frameworks.workload import WORKLOAD_CLASS
from queuecontroller.scheduler.model.reasons import FINISHED
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS

WIDTH: Final = 4


def class_of(workload: Document) -> str | None:
    """The name of its WorkloadPriorityClass."""
    reference = (workload.get("spec") or {}).get("priorityClassRef") or {}
    return str(reference.get("name")) if reference.get("kind") == WORKLOAD_CLASS else None


class Priorities:
    def __init__(
        self,
        workload_actions: WorkloadActions,
        may_write: Callable[[], bool],
        add: Callable[[Unit], None],
    ) -> None:
        """`add` queues a job or pods to be reconciled."""
        self._actions = workload_actions
        self._cache = workload_actions.cache
        self._may_write = may_write
        self._add = add
        self.work_queue: WorkQueue[str] = WorkQueue("priority of Workload", self._follow, WIDTH)

    def add_all(self) -> None:
        self._add_those_of(self._cache.all_of(PRIORITY_CLASSES))

    def class_changed(self, key: str, document: Document | None) -> None:
        """Handle a change of a WorkloadPriorityClass. Workloads of a deleted one keep their
        priority."""
        if document is not None:
            self._add_those_of([document])
        self.any_class_changed(key, document)

    def any_class_changed(self, key: str, document: Document | None) -> None:
        """Reconcile all that lacked a class, of either kind, again."""
        for kind, waiting in self._actions.take_those_without_class():
            found = self._cache.get(kind, waiting)
            if found is not None:
                self._add(of_pod(found) if kind == PODS else unit_of(kind, waiting))

    def _add_those_of(self, classes: Iterable[Document]) -> None:
        values = {key_of(one): one.get("value") for one in classes}
        if values:
            for workload in self._cache.all_of(WORKLOADS):
                if _differs(workload, values):
                    self.work_queue.add(key_of(workload), urgent=False)

    async def _follow(self, key: str) -> None:
        workload = self._cache.get(WORKLOADS, key)
        name = class_of(workload) if workload is not None else None
        found = self._cache.get(PRIORITY_CLASSES, name) if name is not None else None
        if workload is None or name is None or found is None or not self._may_write():
            return
        value = found.get("value")
        if not _differs(workload, {name: value}):
            return
        try:
            patch = {"spec": {"priority": value}}
            action = UpdateWorkload(patch, "its priority class has another value")
            await self._actions.do(action, workload)
        except ApiRefused as refused:
            if refused.status in NEVER:
                return  # Its next change, or that of its class, is followed again.
            if not refused.not_found and not refused.conflict:
                raise
            await self._actions.look_again(WORKLOADS, key)
            self.work_queue.add(key, urgent=False)


def _differs(workload: Document, values: Mapping[str, object]) -> bool:
    """Return True for an unfinished Workload whose priority is not the value of its class."""
    name = class_of(workload)
    return (
        name is not None
        and name in values
        and workload["spec"].get("priority") != values[name]
        and not has_condition(workload, FINISHED)
        and not is_leaving(workload)
    )
