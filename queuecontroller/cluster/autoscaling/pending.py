"""Pending GPU shares: queued Workloads that have quota and no room, and pods that no queue holds.

A Workload counts only if its quota is free beside that of those before it: the nodes of the others
would stay empty. Pods that wait for their victims of preemption need no node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, seconds_of
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.pending_shares import EqualPods, PendingShares, Terrain
from queuecontroller.gpushares.extender.pods import PodAsk, is_over, read_pod
from queuecontroller.gpushares.extender.queued_room import Asks
from queuecontroller.kueueapi.manifests.pods import (
    pod_requests,
    read_node_affinity,
    read_tolerations,
)
from queuecontroller.scheduler.explain.scratch import Scratch
from queuecontroller.scheduler.model.assignment import NO_ROOM, Assignment, Mode
from queuecontroller.scheduler.model.objects import PodSet, Workload, WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.choose import PodToPlace
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.topology.ground import PODS, Ground
from queuecontroller.state.book import Book
from queuecontroller.state.nodes.sessions import SECOND_NS
from sluicecommon.reader import ManifestError, Reader

MAX_PENDING: Final = 250
"""Requests that one look considers, those of high priority first: they take a quarter of a second.
"""
ANY: Final = GpuRequest()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending request, and what it is for: a Workload or a pod."""

    request: PendingShares
    workload: WorkloadKey | None = None
    pod: Document | None = None


class PendingGpus:
    def __init__(
        self,
        book: Book,
        ground: Ground,
        asks: Callable[[WorkloadKey], Asks],
        defaults: Defaults,
        pods: Callable[[], Iterator[tuple[str, Document]]],
        is_plain: Callable[[Document], bool],
    ) -> None:
        """`pods`: all pods that request GPU shares. `is_plain` returns True for a pod that is
        scheduled by the extender alone, and waits for no victims."""
        self._book = book
        self._ground = ground
        self._asks = asks
        self._defaults = defaults
        self._pods = pods
        self._is_plain = is_plain
        self._since_ns: dict[WorkloadKey, int] = {}
        """Time of the look that first saw that there is no room for a Workload."""

    def look(self, now_ns: int, waited_s: float) -> list[Waiting]:
        """Requests that have been pending for that time, those of high priority first."""
        terrain = Terrain(self._facts)
        found = [*self._workloads(terrain, now_ns, waited_s)]
        found += self._plain_pods(terrain, now_ns, waited_s)
        found.sort(key=lambda one: (-one.request.priority, one.request.key))
        return found[:MAX_PENDING]

    def _facts(self, name: str) -> NodeCapacity | None:
        """Labels, taints and free resources of a node, by its Node object and the pods there."""
        facts = self._ground.nodes.get(name)
        if facts is None or not facts.ready:
            return None
        free = dict(facts.allocatable)
        for used in (self._ground.others_on(name), self._ground.taken(facts.host, ())):
            for resource, amount in used.items():
                if resource in free:
                    free[resource] -= amount
        return NodeCapacity((), facts.labels, facts.taints, other=free)

    # -- queued Workloads -------------------------------------------------------------------------

    def _workloads(self, terrain: Terrain, now_ns: int, waited_s: float) -> Iterator[Waiting]:
        engine, undos = self._book.engine, []
        since: dict[WorkloadKey, int] = {}
        try:
            for name, line in engine.pending.items():
                state = engine.cache.queues.get(name)
                if state is None or engine.cache.why_inactive(name) is not None:
                    continue
                for info in line.everyone():
                    if not self._lacks_room(info.key):
                        continue
                    since[info.key] = self._since_ns.get(info.key, now_ns)
                    if now_ns - since[info.key] < waited_s * SECOND_NS:
                        continue
                    assignment = Scratch(state, engine.settings).assign(info)
                    if assignment.mode is not Mode.FIT:
                        continue
                    request = self._request_of(info, assignment, terrain)
                    if request is not None:
                        state.node.add_usage(assignment.usage)
                        undos.append((state.node, assignment.usage))
                        yield Waiting(request, workload=info.key)
        finally:
            self._since_ns = since
            for node, usage in reversed(undos):
                node.remove_usage(usage)

    def _lacks_room(self, key: WorkloadKey) -> bool:
        why = self._book.workloads.why_not(key)
        return why is not None and why.reason in NO_ROOM

    def _request_of(
        self, info: WorkloadInfo, assignment: Assignment, terrain: Terrain
    ) -> PendingShares | None:
        asks = self._asks(info.key)
        pod_sets = {one.name: one for one in info.workload.pod_sets}
        parts = []
        for given in assignment.pod_sets:
            ask, pod_set = asks.get(given.name), pod_sets[given.name]
            if ask is None or not ask.containers or not given.count:
                continue
            if ask.wrong or _together(pod_set, given.count):
                return None
            flavors = {one.flavor for one in given.flavors.values()}
            rules = self._rules(info.workload, pod_set, flavors)
            parts.append(EqualPods(ask, rules, given.count, self._other(pod_set.pod_requests)))
        if not parts:
            return None
        return PendingShares(f"Workload {info.key}", tuple(parts), terrain, info.priority)

    def _rules(self, workload: Workload, pod_set: PodSet, flavors: set[str]) -> PodToPlace:
        known = self._book.engine.cache.flavors
        given = [known[name] for name in sorted(flavors) if name in known]
        labels = {k: v for flavor in given for k, v in flavor.node_labels.items()}
        return PodToPlace(
            "",
            ANY,
            labels=tuple({**pod_set.node_selector, **labels}.items()),
            affinity=pod_set.affinity,
            tolerations=(*pod_set.tolerations, *(t for one in given for t in one.tolerations)),
        )

    # -- pods that no queue holds -----------------------------------------------------------------

    def _plain_pods(self, terrain: Terrain, now_ns: int, waited_s: float) -> Iterator[Waiting]:
        before_s = now_ns / SECOND_NS - waited_s
        for _, pod in self._pods():
            created_s = seconds_of(pod["metadata"].get("creationTimestamp"))
            if not _is_pending(pod) or created_s is None or created_s > before_s:
                continue
            ask = read_pod(pod, self._defaults.names, self._defaults.request)
            if not ask.containers or ask.wrong or not self._is_plain(pod):
                continue
            part = self._part_of(pod, ask)
            if part is not None:
                request = PendingShares(f"Pod {ask.key}", (part,), terrain, ask.priority)
                yield Waiting(request, pod=pod)

    def _part_of(self, pod: Document, ask: PodAsk) -> EqualPods | None:
        spec = Reader(pod["spec"])
        try:
            selector = spec.labels("nodeSelector")
            affinity = read_node_affinity(spec)
            rules = PodToPlace(
                "",
                ANY,
                labels=tuple(selector.items()),
                affinity=affinity,
                tolerations=read_tolerations(spec, "tolerations"),
            )
            return EqualPods(ask, rules, 1, self._other(pod_requests(spec)))
        except (ManifestError, TypeError, AttributeError):
            return None  # The API server has admitted it: it is of a later version.

    def _other(self, requests: Mapping[str, int]) -> dict[str, int]:
        hidden = self._defaults.names.resources
        return {**{k: v for k, v in requests.items() if k not in hidden}, PODS: 1}


def _together(pod_set: PodSet, count: int) -> bool:
    """True for several pods that have to be near to each other: which domain new nodes will be in
    is not known."""
    return count > 1 and bool(pod_set.required_topology or pod_set.slice_topology)


def _is_pending(pod: Mapping[str, Any]) -> bool:
    spec, status = pod["spec"], pod.get("status") or {}
    waits = spec.get("nodeName") or spec.get("schedulingGates") or status.get("nominatedNodeName")
    of_daemon = any(
        one.get("kind") == "DaemonSet" for one in pod["metadata"].get("ownerReferences") or ()
    )
    leaving = bool(pod["metadata"].get("deletionTimestamp"))
    return not (waits or of_daemon or leaving or is_over(pod))
