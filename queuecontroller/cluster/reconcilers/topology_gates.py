"""Reconciler of pods whose Workload was assigned topology domains: each has a gate until it gets a
domain, and then a node selector for it.

Their job creates and replaces them; all pods of a Workload are reconciled together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from queuecontroller.cluster.cache.kinds import PLACED_PODS, WORKLOADS
from queuecontroller.cluster.cache.objects import (
    Document,
    annotations_of,
    has_condition,
    labels_of,
    split_key,
)
from queuecontroller.cluster.reconcilers.units import Unit, placed_unit
from queuecontroller.cluster.reconcilers.workload_actions import WorkloadActions
from queuecontroller.frameworks import group_of
from queuecontroller.frameworks.annotations.topology_requests import (
    domains,
    is_waiting,
    let_go_patch,
    places,
    request_of,
)
from queuecontroller.frameworks.names import POD_SET, TOPOLOGY_GATE, WORKLOAD
from queuecontroller.scheduler.model.reasons import ADMITTED, EVICTED, FINISHED
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import PODS

AT_ONCE: Final = 8


class TopologyGates:
    """Ungates pods once they have a topology domain."""

    def __init__(self, workload_actions: WorkloadActions) -> None:
        self._actions = workload_actions
        self._cache = workload_actions.cache
        self._unit_of: dict[str, Unit] = {}
        self._of_unit: dict[Unit, dict[str, None]] = {}

    def changed(self, key: str, pod: Document | None) -> Iterator[Unit]:
        before = self._unit_of.pop(key, None)
        if before is not None:
            self._of_unit[before].pop(key)
            if not self._of_unit[before]:
                del self._of_unit[before]
            yield before
        if pod is None or labels_of(pod).get(PLACED_PODS) != "true":
            return
        name = annotations_of(pod).get(WORKLOAD)
        if name:
            unit = placed_unit(f"{split_key(key)[0]}/{name}")
            self._unit_of[key] = unit
            self._of_unit.setdefault(unit, {})[key] = None
            if unit != before:
                yield unit

    def has(self, unit: Unit) -> bool:
        return unit in self._of_unit

    def of(self, unit: Unit) -> list[Document]:
        found = (self._cache.get(PODS, key) for key in list(self._of_unit.get(unit, ())))
        return [one for one in found if one is not None]

    async def reconcile(self, unit: Unit) -> bool:
        """Assign domains to a Workload's gated pods; returns True to be queued again."""
        workload = self._cache.get(WORKLOADS, unit.key)
        if workload is None or not self._actions.may_run(workload):
            return False
        if not has_condition(workload, ADMITTED) or has_condition(workload, FINISHED):
            return False
        if has_condition(workload, EVICTED):
            return False
        pods = self.of(unit)
        todo: list[tuple[Document, Mapping[str, str]]] = []
        for given, request in assigned(workload):
            mine = [one for one in pods if labels_of(one).get(POD_SET, "main") == given["name"]]
            waiting = [one for one in mine if is_waiting(one)]
            by_name = {one["metadata"]["name"]: one for one in waiting}
            found = places(domains(given), request, mine, waiting)
            todo += [(by_name[name], selector) for name, selector in found.items()]
        for at in range(0, len(todo), AT_ONCE):
            some = todo[at : at + AT_ONCE]
            await asyncio.gather(*(self._ungate(pod, selector, workload) for pod, selector in some))
        return bool(todo)

    async def _ungate(self, pod: Document, selector: Mapping[str, str], workload: Document) -> None:
        try:
            await self._actions.patch(PODS, pod, let_go_patch(pod, selector))
            is_group = bool(group_of(pod))
            self._actions.count_gate(workload, TOPOLOGY_GATE, is_group)
        except ApiRefused as refused:
            if not refused.not_found and not refused.conflict:
                raise
            await self._actions.look_again(
                PODS, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            )


def assigned(workload: Document) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the assignment and the topology request of each pod set with topology domains."""
    admission = (workload.get("status") or {}).get("admission") or {}
    sets = {
        one.get("name", "main"): one for one in (workload.get("spec") or {}).get("podSets") or ()
    }
    for one in admission.get("podSetAssignments") or ():
        if one.get("topologyAssignment"):
            yield one, request_of(sets.get(one.get("name"), {}), one.get("count") or 0)
