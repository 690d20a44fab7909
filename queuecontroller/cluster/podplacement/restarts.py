"""Restarts of running Workloads for consolidation, and checkpoints of preempted ones, by the API
server's objects: whether a job makes its pod again, who permits it, and which pods a
PodDisruptionBudget guards.

An annotation is read where it is and not copied to the Workload, so it may be set while a job runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from queuecontroller.gpushares.admission.names import VOLCANO_RESOURCES
from queuecontroller.gpushares.extender.ledger import HeldPod
from queuecontroller.gpushares.extender.victims import violating
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.objects.catalogue import CONSOLIDATION, ON_PREEMPTION
from queuecontroller.state.records import Consolidation, OnPreemption
from sluicecommon.hami.names import ResourceNames


class JobRestarts:
    """The ports `state.nodes.pod_moves.Restarts` and `pod_checkpoints.Permissions`."""

    def __init__(self, cache: ObjectCache, budgets: Budgets) -> None:
        self._cache = cache
        self._budgets = budgets

    def is_restarted(self, key: WorkloadKey) -> bool:
        """True for a job that is suspended and resumed. Another controller would make a new pod,
        with a Workload of its own at the end of the queue, and nothing makes a bare pod again."""
        workload = self._cache.get(WORKLOADS, key)
        return workload is not None and kind_of(controller_of(workload)) in KINDS

    def permission(self, key: WorkloadKey) -> Consolidation | None:
        if self._cache.get(WORKLOADS, key) is None:
            return Consolidation.NEVER
        text = self._annotation(key, CONSOLIDATION)
        if text is None:
            return None
        return Consolidation.RESTART if text == Consolidation.RESTART else Consolidation.NEVER

    def on_preemption(self, key: WorkloadKey) -> OnPreemption | None:
        text = self._annotation(key, ON_PREEMPTION)
        known = {str(one): one for one in OnPreemption}
        return known.get(text, OnPreemption.STOP) if text is not None else None

    def other_devices(self, key: WorkloadKey, names: ResourceNames) -> str:
        workload = self._cache.get(WORKLOADS, key) or {}
        shares = {*names.resources, *VOLCANO_RESOURCES}
        for one in (workload.get("spec") or {}).get("podSets") or ():
            spec = (one.get("template") or {}).get("spec") or {}
            if spec.get("resourceClaims"):
                return "resourceClaims"
            for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
                for asked in (container.get("resources") or {}).values():
                    for name in asked if isinstance(asked, Mapping) else ():
                        if "/" in name and name not in shares:
                            return str(name)
        return ""

    def _annotation(self, key: WorkloadKey, name: str) -> str | None:
        workload = self._cache.get(WORKLOADS, key)
        if workload is None:
            return None
        given = (annotations_of(one).get(name) for one in self._annotated(key, workload))
        return next((text for text in given if text is not None), None)

    def _annotated(self, key: WorkloadKey, workload: Document) -> Iterator[Document]:
        """The Workload, its job and the owners of that, and the template of its pods."""
        yield workload
        yield from above(self._cache, workload, split_key(key)[0])
        for one in (workload.get("spec") or {}).get("podSets") or ():
            yield {"metadata": (one.get("template") or {}).get("metadata") or {}}

    def is_guarded(self, pod: HeldPod) -> bool:
        return bool(violating([pod], self._budgets.all()))
