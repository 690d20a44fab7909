"""A workload as the scheduler works on it: totals computed once, and its usage by number."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuecontroller.scheduler.model.assignment import Assignment
from queuecontroller.scheduler.model.flavor_resources import FlavorResources, Fr
from queuecontroller.scheduler.model.objects import PodSet, Workload, WorkloadKey, nothing
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    EVICTED,
    PREEMPTED,
    QUOTA_RESERVED,
    EvictionReason,
    PreemptionReason,
)
from sluicecommon.kubernetes.quantity import PODS, saturate

# Keeps it behind a preemptor that was created in the same nanosecond.
_A_MOMENT_NS: Final = 1_000_000

# Eviction reasons after which a workload queues by its eviction time instead of its creation time.
_REQUEUED_BY_EVICTION: Final = frozenset(
    {EvictionReason.PODS_READY_TIMEOUT.value, EvictionReason.ADMISSION_CHECK.value}
)
_ALWAYS_BY_EVICTION: Final = frozenset({EvictionReason.ADMISSION_CHECK.value})


class PodSetRequests:
    """Total of one pod set: `requests` is for all `count` pods. `flavors` is set when admitted."""

    __slots__ = ("_with_pods", "count", "flavors", "name", "pod_set", "requests")

    def __init__(
        self,
        name: str,
        count: int,
        requests: Mapping[str, int],
        pod_set: PodSet | None = None,
        flavors: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.count = count
        self.requests = requests
        self.pod_set = pod_set
        self.flavors = flavors or {}
        self._with_pods: dict[str, int] | None = None

    def scaled_to(self, count: int) -> PodSetRequests:
        if count == self.count:
            return self
        requests = {
            name: amount // self.count * count if self.count else 0
            for name, amount in self.requests.items()
        }
        return PodSetRequests(self.name, count, requests, self.pod_set, self.flavors)

    def requests_with_pods(self) -> Mapping[str, int]:
        """Requests plus the resource `pods`, which counts the pods themselves."""
        if self._with_pods is None:
            self._with_pods = dict(sorted({**self.requests, PODS: self.count}.items()))
        return self._with_pods


Tried = Sequence[Mapping[str, int]]
"""Index of the last flavor tried, by pod set and resource; -1 after the last of all."""


class LastAssignment:
    """The flavors at which the last attempt ended, so that the next one continues from there, even
    after quota was freed: a scan that starts over at each change never reaches its last flavor
    where there are many."""

    __slots__ = ("seen", "tried")

    def __init__(self, tried: Tried, seen: frozenset[str] = frozenset()) -> None:
        self.tried = tried
        self.seen = seen
        """Positions at which attempts have ended since the last change. An attempt that ends at one
        of them again is circling and is ended; otherwise no workload behind it would be evaluated.
        """

    def next_flavor(self, pod_set: int, resource: str) -> int:
        if pod_set >= len(self.tried):
            return 0
        return self.tried[pod_set].get(resource, -1) + 1

    def after(self, tried: Tried, changed: bool) -> LastAssignment | None:
        """Position where the next attempt begins; None: no flavor is left to try. `changed` is True
        if something changed since the last attempt."""
        if not has_flavors_left(tried):
            return None
        place = repr(tried)
        seen = frozenset() if changed else self.seen
        return None if place in seen else LastAssignment(tried, seen | {place})


def has_flavors_left(tried: Tried) -> bool:
    return any(index != -1 for one in tried for index in one.values())


BEGIN: Final = LastAssignment(())
"""Position before the first flavor."""


Shape = tuple[object, ...]


class Memo:
    """The last evaluation, valid until something in the cohort tree changes."""

    __slots__ = ("assignment", "generation", "targets")

    def __init__(self, generation: int, assignment: Assignment, targets: Sequence[Target]) -> None:
        self.generation = generation
        self.assignment = assignment
        self.targets = targets


class WorkloadInfo:
    __slots__ = (
        "_shape",
        "admitted_ns",
        "assignment",
        "cluster_queue",
        "deferrals",
        "deferred_since",
        "evicted",
        "key",
        "last_assignment",
        "memo",
        "order_ns",
        "pod_sets",
        "priority",
        "replaces",
        "reserved_ns",
        "room_shape",
        "uid",
        "usage",
        "workload",
    )

    def __init__(
        self,
        workload: Workload,
        cluster_queue: str,
        numbers: FlavorResources,
        *,
        reclaimable: bool = True,
        priority_sorting: bool = True,
        by_eviction: bool = True,
    ) -> None:
        self.workload = workload
        self.key: WorkloadKey = workload.key
        self.cluster_queue = cluster_queue
        self.priority = workload.priority
        self.uid = workload.uid
        self.evicted = workload.is_true(EVICTED)
        reserved = workload.condition(QUOTA_RESERVED)
        self.reserved_ns = reserved.changed_ns if reserved and reserved.status else None
        admitted = workload.condition(ADMITTED)
        self.admitted_ns = admitted.changed_ns if admitted and admitted.status else None
        self.order_ns = queue_order_ns(workload, priority_sorting, by_eviction)
        self.last_assignment: LastAssignment = BEGIN
        self.assignment: Assignment | None = None
        """Assignment by the scheduler; None before that."""
        self.memo: Memo | None = None
        self.deferrals = 0
        """Number of consecutive cycles without time to search room for it."""
        self.deferred_since = 0
        """Number of the first of these cycles."""
        self._shape: Shape | None = None
        self.room_shape: Hashable = None
        """Anything else that decides about room for it, see `room`."""
        self.replaces: Sequence[PodSetRequests] | None = None
        """The admitted slice this workload grows out of; only the difference is new usage."""
        self.pod_sets = (
            _pending_totals(workload, reclaimable)
            if workload.admission is None
            else _admitted_totals(workload, reclaimable)
        )
        self.usage: Mapping[Fr, int] = held(self.pod_sets, numbers)

    def __repr__(self) -> str:
        return f"WorkloadInfo({self.key})"

    @property
    def shape(self) -> Shape:
        """Everything the outcome of an evaluation depends on besides age. Workloads of one shape in
        one queue have the same outcome: when the oldest cannot start, none can."""
        if self._shape is None:
            workload = self.workload
            self._shape = (
                self.priority,
                workload.namespace,
                workload.allowed_flavors,
                workload.preemption_gates,
                tuple(_pod_set_shape(one) for one in self.pod_sets),
                workload.replaces,
                self.room_shape,  # the last: see `share_shape`
            )
        return self._shape

    def share_shape(self, shape: Shape) -> None:
        """Use this equal shape instead of its own, so that it is in memory once."""
        self._shape = shape
        self.room_shape = shape[-1]

    @property
    def can_be_partially_admitted(self) -> bool:
        return any(
            one.min_count is not None and one.min_count < one.count
            for one in self.workload.pod_sets
        )


def _pod_set_shape(one: PodSetRequests) -> Shape:
    pod_set = one.pod_set
    requests = tuple(one.requests.items())
    if pod_set is None:
        return (one.count, requests)
    return (
        one.count,
        requests,
        pod_set.min_count,
        tuple(sorted(pod_set.node_selector.items())),
        pod_set.affinity,
        pod_set.tolerations,
        pod_set.group,
        pod_set.required_topology,
        pod_set.preferred_topology,
        pod_set.unconstrained_topology,
        pod_set.over_limit,
    )


def held(pod_sets: Sequence[PodSetRequests], numbers: FlavorResources) -> Mapping[Fr, int]:
    """Usage by number; a resource without a flavor holds nothing."""
    usage: dict[Fr, int] = {}
    for one in pod_sets:
        for resource, flavor in one.flavors.items():
            fr = numbers.number(flavor, resource)
            usage[fr] = usage.get(fr, 0) + one.requests.get(resource, 0)
    return usage or nothing()


def _live_counts(workload: Workload, reclaimable: bool) -> dict[str, int]:
    gone = workload.reclaimable_pods if reclaimable else {}
    return {one.name: max(0, one.count - gone.get(one.name, 0)) for one in workload.pod_sets}


_totals: dict[tuple[int, int], PodSetRequests] = {}
"""Totals of pod sets that many workloads share, by identity and count, to save memory."""
_MAX_TOTALS: Final = 4096


def _pending_totals(workload: Workload, reclaimable: bool) -> list[PodSetRequests]:
    counts = _live_counts(workload, reclaimable)
    return [_total(one, counts[one.name]) for one in workload.pod_sets]


def _total(one: PodSet, count: int) -> PodSetRequests:
    known = _totals.get((id(one), count))
    if known is None or known.pod_set is not one:
        requests = {name: saturate(amount * count) for name, amount in sorted(one.requests.items())}
        if len(_totals) >= _MAX_TOTALS:
            _totals.clear()
        known = _totals[id(one), count] = PodSetRequests(one.name, count, requests, one)
    return known


def _admitted_totals(workload: Workload, reclaimable: bool) -> list[PodSetRequests]:
    assert workload.admission is not None
    counts = _live_counts(workload, reclaimable)
    by_name = {one.name: one for one in workload.pod_sets}
    totals = []
    for given in workload.admission.pod_sets:
        total = PodSetRequests(
            given.name, given.count, given.usage, by_name.get(given.name), given.flavors
        )
        live = counts.get(given.name, given.count)
        totals.append(total.scaled_to(live) if live < given.count else total)
    return totals


def queue_order_ns(
    workload: Workload, priority_sorting: bool = True, by_eviction: bool = True
) -> int:
    """The time that decides FIFO order, in ns; `by_eviction` is EngineSettings'
    requeued_by_eviction.

    Where a cohort is not sorted by priority, a workload that was preempted to return lent quota is
    ordered behind its preemptor; otherwise the older one would take the quota again at once, and so
    on without end.
    """
    evicted = workload.condition(EVICTED)
    back = _REQUEUED_BY_EVICTION if by_eviction else _ALWAYS_BY_EVICTION
    if evicted and evicted.status and evicted.reason in back:
        return evicted.changed_ns
    if not priority_sorting:
        preempted = workload.condition(PREEMPTED)
        reclaimed = PreemptionReason.IN_COHORT_RECLAMATION
        if preempted and preempted.status and preempted.reason == reclaimed:
            return preempted.changed_ns + _A_MOMENT_NS
    return workload.created_ns


@dataclass(frozen=True, slots=True)
class Target:
    """A victim of preemption, and the reason."""

    info: WorkloadInfo
    reason: PreemptionReason
