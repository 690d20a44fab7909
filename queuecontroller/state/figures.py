"""Counters and histograms for /metrics, updated while deciding: plain numbers, no client
library."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.scheduler.model.objects import Workload
from sluicecommon.newest import Newest

SECONDS: Final = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 43200, 86400)
"""Bucket bounds for waiting times in seconds, up to a day."""
CYCLE_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


@dataclass(slots=True)
class Histogram:
    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def observe(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative buckets, as in the exposition format."""
        counts = self.counts or [0] * (len(self.bounds) + 1)
        running, out = 0, []
        for bound, count in zip((*self.bounds, None), counts, strict=True):
            running += count
            out.append(("+Inf" if bound is None else f"{bound:g}", float(running)))
        return out


Labels = tuple[str, ...]
MAX_SERIES: Final = 20_000
"""Series per metric; beyond that the oldest are dropped, since queues are created and deleted."""


@dataclass(frozen=True, slots=True)
class Place:
    """Queues and priority class by which a workload is counted."""

    cluster_queue: str
    local_queue: str
    namespace: str
    priority_class: str


def place_of(workload: Workload, cluster_queue: str) -> Place:
    return Place(
        cluster_queue, workload.queue_name, workload.namespace, workload.priority_class or ""
    )


class Counts(Counter[Labels]):
    def add(self, *labels: str) -> None:
        self[labels] += 1
        if len(self) > MAX_SERIES:
            del self[next(iter(self))]


DEFECTS: Final = Counts()
"""Unexpected exceptions of this process, by the place that caught them. Only the object that caused
one is retried."""


class Waits(Newest[Labels, Histogram]):
    def __init__(self) -> None:
        super().__init__(MAX_SERIES)

    def add(self, seconds: float, *labels: str) -> None:
        found = self.get(labels)
        if found is None:
            found = self[labels] = Histogram()
        found.observe(max(0.0, seconds))


@dataclass(slots=True)
class ByQueue:
    """Workload counters by ClusterQueue, and by LocalQueue and namespace; further labels follow,
    then the priority class."""

    cluster: Counts = field(default_factory=Counts)
    local: Counts = field(default_factory=Counts)

    def add(self, place: Place, *more: str) -> None:
        self.cluster.add(place.cluster_queue, *more, place.priority_class)
        self.local.add(place.local_queue, place.namespace, *more, place.priority_class)


@dataclass(slots=True)
class WaitsByQueue:
    """Time histograms with the labels of `ByQueue`."""

    cluster: Waits = field(default_factory=Waits)
    local: Waits = field(default_factory=Waits)

    def add(self, place: Place, seconds: float) -> None:
        self.cluster.add(seconds, place.cluster_queue, place.priority_class)
        self.local.add(seconds, place.local_queue, place.namespace, place.priority_class)


def _drop(series: Counts | Waits, at: int, *labels: str) -> None:
    """Remove the series that have these labels from position `at` on."""
    gone = [one for one in series if one[at : at + len(labels)] == labels]
    for one in gone:
        del series[one]


@dataclass(slots=True)
class Figures:
    attempts: Counter[str] = field(default_factory=Counter)
    """Cycles with work by result: success or inadmissible, Kueue's words."""
    attempt_s: dict[str, Histogram] = field(default_factory=dict)
    """Length of cycles, by result."""
    skips: dict[str, int] = field(default_factory=dict)
    """Workloads per ClusterQueue whose preemption was skipped in the last cycle because of
    another's."""
    recomputed: Counts = field(default_factory=Counts)
    """Searches for other victims, because another workload of the cycle took them, by ClusterQueue
    and outcome, Kueue's words."""
    reserved: ByQueue = field(default_factory=ByQueue)
    admitted: ByQueue = field(default_factory=ByQueue)
    admitted_below: Counts = field(default_factory=Counts)
    """Admissions by cohort and priority class."""
    finished: ByQueue = field(default_factory=ByQueue)
    evicted: ByQueue = field(default_factory=ByQueue)
    """Evictions by reason and cause."""
    evicted_once: ByQueue = field(default_factory=ByQueue)
    preempted: Counts = field(default_factory=Counts)
    """Preemptions by the preemptor's ClusterQueue and reason."""
    preemption_turns: Counter[str] = field(default_factory=Counter)
    """Mutual preemptions beyond the limit, by the preemptor's ClusterQueue."""
    replaced: Counts = field(default_factory=Counts)
    """Replaced workload slices by ClusterQueue."""
    reserve_wait: WaitsByQueue = field(default_factory=WaitsByQueue)
    admit_wait: WaitsByQueue = field(default_factory=WaitsByQueue)
    checks_wait: WaitsByQueue = field(default_factory=WaitsByQueue)
    ready_wait: WaitsByQueue = field(default_factory=WaitsByQueue)
    admitted_ready: WaitsByQueue = field(default_factory=WaitsByQueue)
    recovery_wait: WaitsByQueue = field(default_factory=WaitsByQueue)
    execution: WaitsByQueue = field(default_factory=WaitsByQueue)
    ready_evicted: Waits = field(default_factory=Waits)
    """Times by ClusterQueue, reason and cause."""
    eviction_latency: Waits = field(default_factory=Waits)
    """Times by ClusterQueue and reason."""
    creation_latency: Waits = field(default_factory=Waits)
    """Latency of creating Workloads, by the kind of their job."""
    gate_removal: Waits = field(default_factory=Waits)
    """Times by gate, ClusterQueue, and True for a group's gate."""
    dispatched: Counts = field(default_factory=Counts)
    """Copies of Workloads that were created in workers, by ClusterQueue and worker."""
    remote_admitted: Counts = field(default_factory=Counts)
    """Workloads that a worker admitted, by the same."""
    remote_evicted: Counts = field(default_factory=Counts)
    """Workloads that lost their worker, by the same."""
    workers: dict[str, dict[str, str]] = field(default_factory=dict)
    """Status of the condition Active of each worker, by ClusterQueue and worker."""
    recent: dict[str, deque[int]] = field(default_factory=dict)
    """Times of the last admissions by ClusterQueue, for estimates."""

    def attempt(self, result: str, seconds: float) -> None:
        found = self.attempt_s.get(result)
        if found is None:
            found = self.attempt_s[result] = Histogram(CYCLE_SECONDS)
        found.observe(seconds)

    def admission(self, place: Place, waited_s: float, now_ns: int) -> None:
        self.admitted.add(place)
        self.admit_wait.add(place, waited_s)
        recent = self.recent.setdefault(place.cluster_queue, deque(maxlen=64))
        recent.append(now_ns)

    def forget(self, kind: str, namespace: str, name: str) -> None:
        """Drop the series of a deleted queue or cohort, as Kueue does: one of that name that is
        created later counts from zero."""
        if kind == "ClusterQueue":
            self.skips.pop(name, None)
            self.preemption_turns.pop(name, None)
            self.recent.pop(name, None)
            self.workers.pop(name, None)
            for one in self._by_queue():
                _drop(one.cluster, 0, name)
            for other in (
                *(self.preempted, self.replaced, self.recomputed),
                *(self.ready_evicted, self.eviction_latency),
                *(self.dispatched, self.remote_admitted, self.remote_evicted),
            ):
                _drop(other, 0, name)
            _drop(self.gate_removal, 1, name)
        elif kind == "LocalQueue":
            for one in self._by_queue():
                _drop(one.local, 0, name, namespace)
        elif kind == "Cohort":
            _drop(self.admitted_below, 0, name)

    def _by_queue(self) -> tuple[ByQueue | WaitsByQueue, ...]:
        return (
            *(self.reserved, self.admitted, self.finished, self.evicted, self.evicted_once),
            *(self.reserve_wait, self.admit_wait, self.checks_wait, self.ready_wait),
            *(self.admitted_ready, self.recovery_wait, self.execution),
        )

    def estimate_s(self, queue: str, position: int, now_ns: int) -> float | None:
        """Seconds until the workload at `position` is admitted at the recent rate; None with fewer
        than two admissions."""
        times = self.recent.get(queue)
        if position < 1 or times is None or len(times) < 2:
            return None
        # The time since the last admission counts, so that a stalled queue's estimate grows.
        return (now_ns - times[0]) / len(times) * position / 1e9
