"""Metrics of workloads, counted as Kueue counts them: at the same moments, from the same times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from queuecontroller.scheduler.lifecycle import SECOND_NS, reason_and_cause
from queuecontroller.scheduler.model.objects import Condition, Workload, WorkloadKey
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    EVICTED,
    PODS_READY,
    QUOTA_RESERVED,
    RECOVERED,
    REQUEUED,
    STARTED,
    WAIT_FOR_RECOVERY,
)
from queuecontroller.state.figures import Figures, place_of


class Counting:
    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._queued_ns: dict[WorkloadKey, int] = {}
        """Start of the wait for quota, ns, of workloads that hold it."""
        self._evicted: dict[WorkloadKey, set[tuple[str, str]]] = {}
        self.evicted_before: Callable[[WorkloadKey], Collection[tuple[str, str]]] = lambda _: ()
        """Reasons and causes of evictions that a workload's stored status lists."""

    def forget(self, key: WorkloadKey) -> None:
        self._queued_ns.pop(key, None)
        self._evicted.pop(key, None)

    def reserved(self, before: Workload, queue: str, now_ns: int) -> None:
        """Count a quota reservation; `before` is the pending workload."""
        again = before.condition(REQUEUED)
        since_ns = again.changed_ns if again is not None else before.created_ns or now_ns
        self._queued_ns[before.key] = since_ns
        place = place_of(before, queue)
        self._figures.reserved.add(place)
        self._figures.reserve_wait.add(place, (now_ns - since_ns) / SECOND_NS)

    def admitted(self, workload: Workload, queue: str, above: Iterable[str], now_ns: int) -> None:
        """Count an admission; `above` are the cohorts of its ClusterQueue."""
        figures, place = self._figures, place_of(workload, queue)
        figures.admission(place, self._waited_s(workload, now_ns), now_ns)
        for cohort in above:
            figures.admitted_below.add(cohort, place.priority_class)
        reserved = workload.condition(QUOTA_RESERVED)
        if workload.admission_checks and reserved is not None:
            figures.checks_wait.add(place, (now_ns - reserved.changed_ns) / SECOND_NS)

    def changed(self, before: Workload, after: Workload, now_ns: int) -> None:
        """Count the first time that the workload's pods are ready, and each recovery."""
        ready, admitted = after.condition(PODS_READY), after.condition(ADMITTED)
        if ready is None or not ready.status or before.is_true(PODS_READY):
            return
        lost = before.condition(PODS_READY)
        recovers = ready.reason == RECOVERED and after.admission is not None
        if recovers and lost is not None and lost.reason == WAIT_FOR_RECOVERY:
            assert after.admission is not None
            place = place_of(after, after.admission.cluster_queue)
            self._figures.recovery_wait.add(place, (now_ns - lost.changed_ns) / SECOND_NS)
        if ready.reason != STARTED or after.admission is None or admitted is None:
            return
        place = place_of(after, after.admission.cluster_queue)
        self._figures.ready_wait.add(place, self._waited_s(after, now_ns))
        since_ns = now_ns - admitted.changed_ns
        self._figures.admitted_ready.add(place, since_ns / SECOND_NS)

    def _waited_s(self, workload: Workload, now_ns: int) -> float:
        since_ns = self._queued_ns.get(workload.key, workload.created_ns or now_ns)
        return (now_ns - since_ns) / SECOND_NS

    def evicted(self, workload: Workload, queue: str, reason: str, cause: str, now_ns: int) -> None:
        """Count an eviction; `workload` is as it was before."""
        figures, place = self._figures, place_of(workload, queue)
        cause_of = reason_and_cause(Condition(EVICTED, True, reason, cause=cause))
        figures.evicted.add(place, *cause_of)
        known = self._evicted.setdefault(workload.key, set())
        if cause_of not in known and cause_of not in self.evicted_before(workload.key):
            figures.evicted_once.add(place, *cause_of)
        known.add(cause_of)
        ready = workload.condition(PODS_READY)
        if ready is not None and ready.status:
            figures.ready_evicted.add((now_ns - ready.changed_ns) / SECOND_NS, queue, *cause_of)

    def stopped(self, workload: Workload, now_ns: int) -> None:
        """Count the end of an eviction, when the quota is free."""
        evicted = workload.condition(EVICTED)
        if evicted is not None and workload.admission is not None:
            queue = workload.admission.cluster_queue
            latency_s = (now_ns - evicted.changed_ns) / SECOND_NS
            self._figures.eviction_latency.add(latency_s, queue, evicted.reason)
        self._queued_ns.pop(workload.key, None)

    def finished(self, workload: Workload, now_ns: int) -> None:
        """Count the end of a workload; `workload` is as it was before."""
        queue = workload.admission.cluster_queue if workload.admission else ""
        place = place_of(workload, queue)
        self._figures.finished.add(place)
        admitted = workload.condition(ADMITTED)
        if workload.admission is not None and admitted is not None and admitted.status:
            ran_s = (now_ns - admitted.changed_ns) / SECOND_NS
            self._figures.execution.add(place, workload.past_execution_s + ran_s)
        self.forget(workload.key)
