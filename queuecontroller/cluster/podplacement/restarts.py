"""Restarts of running Workloads for consolidation, by the API server's objects: whether a job makes
its pod again, who permits it, and which pods a PodDisruptionBudget guards.

An annotation is read where it is and not copied to the Workload, so it may be set while a job runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from queuecontroller.cluster.cache.job_context import KINDS, above, kind_of
from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    ObjectCache,
    annotations_of,
    controller_of,
    split_key,
)
from queuecontroller.cluster.podplacement.gpu_pods import Budgets
from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.gpushares.extender.victims import violating
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.objects.catalogue import CONSOLIDATION
from queuecontroller.state.records import Consolidation


class JobRestarts:
    """The port `state.nodes.pod_moves.Restarts`."""

    def __init__(self, cache: ObjectCache, budgets: Budgets) -> None:
        self._cache = cache
        self._budgets = budgets

    def is_restarted(self, key: WorkloadKey) -> bool:
        """True for a job that is suspended and resumed. Another controller would make a new pod,
        with a Workload of its own at the end of the queue, and nothing makes a bare pod again."""
        workload = self._cache.get(WORKLOADS, key)
        return workload is not None and kind_of(controller_of(workload)) in KINDS

    def permission(self, key: WorkloadKey) -> Consolidation | None:
        workload = self._cache.get(WORKLOADS, key)
        if workload is None:
            return Consolidation.NEVER
        for one in self._annotated(key, workload):
            text = annotations_of(one).get(CONSOLIDATION)
            if text is not None:
                is_known = text == Consolidation.RESTART
                return Consolidation.RESTART if is_known else Consolidation.NEVER
        return None

    def _annotated(self, key: WorkloadKey, workload: Document) -> Iterator[Document]:
        """The Workload, its job and the owners of that, and the template of its pods."""
        yield workload
        yield from above(self._cache, workload, split_key(key)[0])
        for one in (workload.get("spec") or {}).get("podSets") or ():
            yield {"metadata": (one.get("template") or {}).get("metadata") or {}}

    def is_guarded(self, pod: HeldPod) -> bool:
        return bool(violating([pod], self._budgets.all()))
