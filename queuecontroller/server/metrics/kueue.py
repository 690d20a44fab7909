"""Kueue's metrics, rendered from the state in memory.

At most MAX_QUEUES ClusterQueues, LocalQueues and cohorts have their own series; one that is left
out is missing from `kueue_cluster_queue_info` and `kueue_cohort_info` too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from queuecontroller.scheduler.model.checkpointed import kept_for
from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import LocalQueue, StopPolicy, Workload
from queuecontroller.scheduler.model.reasons import (
    ADMITTED,
    NO_RESERVATION,
    UNSATISFIED_CHECKS,
    PendingReason,
)
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.shares import dominant_share
from queuecontroller.scheduler.quota.tree import QuotaNode
from queuecontroller.scheduler.quota.usage_history import usage_of
from queuecontroller.server.metrics import kueue_catalogue as k
from queuecontroller.server.metrics.samples import Samples
from queuecontroller.state.book import Book
from queuecontroller.state.figures import Labels, Waits, WaitsByQueue
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.quantity import CPU
from sluicecommon.metric import Metric

MAX_QUEUES: Final = 2000
MAX_SHOWN: Final = 10_000
"""Series of one metric whose labels are a queue and something else."""


@dataclass(frozen=True, slots=True)
class Around:
    """Facts about the replica and the cluster that the book does not have."""

    role: str = "standalone"
    """Value of Kueue's label `replica_role`."""
    is_leaving: Callable[[str], bool] = lambda name: False
    """True for a ClusterQueue that is being deleted."""


ALONE: Final = Around()


@dataclass(slots=True)
class _Line:
    """Workloads and quota of one LocalQueue."""

    active: int = 0
    inadmissible: int = 0
    reserving: int = 0
    admitted: int = 0
    finished: int = 0
    reserved: Counter[Fr] = field(default_factory=Counter)
    used: Counter[Fr] = field(default_factory=Counter)


def kueue_samples(samples: Samples, shell: Shell, version: str, around: Around) -> None:
    _Kueue(samples, shell.book, around).all(version)


def in_units(resource: str, amount: int | None) -> float | None:
    """An amount in the unit that Kueue exports: CPU in cores."""
    return amount / 1000 if resource == CPU and amount is not None else amount


class _Kueue:
    def __init__(self, samples: Samples, book: Book, around: Around) -> None:
        self._samples = samples
        self._book = book
        self._engine = book.engine
        self._figures = book.workloads.figures
        self._role = around.role
        self._is_leaving = around.is_leaving
        self._lines: dict[tuple[str, str], _Line] = {}
        """LocalQueues by namespace and name."""
        self._unadmitted: Counter[Labels] = Counter()
        """Workloads by LocalQueue's name and namespace, ClusterQueue, reason and cause."""

    def _add(self, metric: Metric, labels: Iterable[str], value: float | None) -> None:
        self._samples.add(metric, (*labels, self._role), value)

    def _line(self, workload: Workload) -> _Line:
        return self._lines.setdefault((workload.namespace, workload.queue_name), _Line())

    def all(self, version: str) -> None:
        self._samples.add(k.BUILD_INFO, (version, "", "", "", "", ""), 1)
        self._counted()
        states = list(islice(self._engine.cache.queues.values(), MAX_QUEUES))
        admitted_below: Counter[str] = Counter()
        for state in states:
            count = self._cluster_queue(state)
            for node in state.node.path[1:]:
                admitted_below[node.name] += count
        self._finished()
        self._local_queues()
        self._not_admitted()
        roots = {id(state.node.root): state.node.root for state in states}
        nodes = (node for root in roots.values() for node in root.subtree() if node.is_cohort)
        for node in islice(nodes, MAX_QUEUES):
            self._cohort(node, admitted_below[node.name])
        self._fair_usage()

    # -- counters -----------------------------------------------------------------------------

    def _counted(self) -> None:
        figures = self._figures
        for result, count in figures.attempts.items():
            self._add(k.ATTEMPTS, (result,), count)
        for result, found in figures.attempt_s.items():
            self._samples.histogram(k.ATTEMPT_DURATION, (result, self._role), found)
        for queue in islice(self._engine.cache.queues, MAX_QUEUES):
            self._add(k.SKIPS, (queue,), figures.skips.get(queue, 0))
        for counts, of_cluster, of_local in (
            (figures.reserved, k.RESERVED, k.LQ_RESERVED),
            (figures.admitted, k.ADMITTED, k.LQ_ADMITTED),
            (figures.finished, k.FINISHED, k.LQ_FINISHED),
            (figures.evicted, k.EVICTED, k.LQ_EVICTED),
        ):
            self._counts(of_cluster, counts.cluster)
            self._counts(of_local, counts.local)
        self._counts(k.EVICTED_ONCE, figures.evicted_once.cluster)
        self._counts(k.COHORT_ADMITTED, figures.admitted_below)
        self._counts(k.PREEMPTED, figures.preempted)
        self._counts(k.REPLACED, figures.replaced)
        self._counts(k.RECOMPUTED, figures.recomputed)
        self._counts(k.DISPATCHED, figures.dispatched)
        self._counts(k.REMOTE_ADMITTED, figures.remote_admitted)
        self._counts(k.REMOTE_EVICTED, figures.remote_evicted)
        for queue, workers in islice(figures.workers.items(), MAX_QUEUES):
            for worker, status in workers.items():
                for one in ("True", "False", "Unknown"):
                    self._add(k.WORKER_STATUS, (queue, worker, one), float(status == one))
        times: tuple[tuple[WaitsByQueue, Metric, Metric], ...] = (
            (figures.reserve_wait, k.RESERVE_WAIT, k.LQ_RESERVE_WAIT),
            (figures.admit_wait, k.ADMIT_WAIT, k.LQ_ADMIT_WAIT),
            (figures.checks_wait, k.CHECKS_WAIT, k.LQ_CHECKS_WAIT),
            (figures.ready_wait, k.READY_WAIT, k.LQ_READY_WAIT),
            (figures.admitted_ready, k.ADMITTED_READY, k.LQ_ADMITTED_READY),
            (figures.recovery_wait, k.RECOVERY_WAIT, k.LQ_RECOVERY_WAIT),
            (figures.execution, k.EXECUTION, k.LQ_EXECUTION),
        )
        for waits, of_cluster, of_local in times:
            self._waits(of_cluster, waits.cluster)
            self._waits(of_local, waits.local)
        self._waits(k.READY_EVICTED, figures.ready_evicted)
        self._waits(k.EVICTION_LATENCY, figures.eviction_latency)
        self._waits(k.CREATION_LATENCY, figures.creation_latency)
        self._waits(k.GATE_REMOVAL, figures.gate_removal)

    def _counts(self, metric: Metric, counts: Mapping[Labels, int]) -> None:
        for labels, count in islice(counts.items(), MAX_SHOWN):
            self._add(metric, labels, count)

    def _waits(self, metric: Metric, waits: Waits) -> None:
        for labels, found in islice(waits.items(), MAX_SHOWN):
            self._samples.histogram(metric, (*labels, self._role), found)

    # -- gauges -------------------------------------------------------------------------------

    def _cluster_queue(self, state: ClusterQueueState) -> int:
        """Add the series of a ClusterQueue; returns the number of admitted workloads."""
        name, spec = state.name, state.spec
        self._pending(state)
        admitted = reserving = 0
        used: Counter[Fr] = Counter()
        for info in state.workloads.values():
            line = self._line(info.workload)
            counts = kept_for(info.key) is None
            reserving += counts
            line.reserving += counts
            is_admitted = info.workload.is_true(ADMITTED)
            for fr, held in info.usage.items():
                line.reserved[fr] += held
                if is_admitted:
                    line.used[fr] += held
                    used[fr] += held
            if is_admitted:
                admitted += counts
                line.admitted += counts
            else:
                of = info.workload.namespace, info.workload.queue_name
                self._count_unadmitted(of, name, UNSATISFIED_CHECKS, "")
        self._add(k.RESERVING_ACTIVE, (name,), reserving)
        self._add(k.ADMITTED_ACTIVE, (name,), admitted)
        cohort, root = _cohorts(state.node)
        self._add(k.CQ_INFO, (name, cohort, root), 1)
        is_active = self._engine.cache.why_inactive(name) is None
        now = "terminating" if self._is_leaving(name) else "active" if is_active else "pending"
        for status in ("active", "pending", "terminating"):
            self._add(k.CQ_STATUS, (name, status), int(status == now))
        numbers = self._engine.cache.numbers
        for group in spec.resource_groups:
            for flavor in group.flavors:
                for quota in flavor.resources:
                    resource = quota.resource
                    labels = (cohort, name, flavor.flavor, resource)
                    fr = numbers.number(flavor.flavor, resource)
                    for metric, amount in (
                        (k.NOMINAL, quota.nominal),
                        (k.BORROWING, quota.borrowing_limit),
                        (k.LENDING, quota.lending_limit),
                        (k.RESERVATION, state.node.used(fr)),
                        (k.USAGE, used.get(fr, 0)),
                    ):
                        self._add(metric, labels, in_units(resource, amount))
        if cohort:
            share = dominant_share(state.node, numbers).per_mille()
            self._add(k.WEIGHTED_SHARE, (name, cohort), share)
        return admitted

    def _pending(self, state: ClusterQueueState) -> None:
        name = state.name
        asked: Counter[str] = Counter(
            {
                quota.resource: 0
                for group in state.spec.resource_groups
                for flavor in group.flavors
                for quota in flavor.resources
            }
        )
        pending = self._engine.pending.get(name)
        is_open = self._engine.cache.why_inactive(name) is None
        by_status = {"active": 0, "inadmissible": 0}
        # There may be 100,000 workloads, so equal ones of a LocalQueue are counted first.
        alike: Counter[tuple[int, str, str, bool, str]] = Counter()
        one_of: dict[int, WorkloadInfo] = {}
        waiting = self._book.workloads.waiting
        for info in pending.unordered() if pending is not None else ():
            assert pending is not None
            shape = id(info.shape)
            one_of[shape] = info
            found = waiting.get(info.key)
            why = found.reason if found is not None else PendingReason.PENDING_EVALUATION
            active = is_open and not pending.is_inadmissible(info)
            workload = info.workload
            alike[shape, workload.namespace, workload.queue_name, active, why] += 1
        for (shape, namespace, queue, active, why), count in alike.items():
            line = self._lines.setdefault((namespace, queue), _Line())
            line.active += count if active else 0
            line.inadmissible += 0 if active else count
            by_status["active" if active else "inadmissible"] += count
            for one in one_of[shape].pod_sets:
                for resource, amount in one.requests.items():
                    asked[resource] += count * amount
            self._count_unadmitted((namespace, queue), name, NO_RESERVATION, why, count)
        shapes: Counter[bool] = Counter(
            active for _, active in {(shape, active) for shape, _, _, active, _ in alike}
        )
        for status, count in by_status.items():
            self._add(k.PENDING, (name, status), count)
            self._add(k.PENDING_SHAPES, (name, status), shapes[status == "active"])
        for resource, amount in asked.items():
            self._add(k.RESOURCE_PENDING, (name, resource), in_units(resource, amount))

    def _count_unadmitted(
        self, line: tuple[str, str], queue: str, reason: str, cause: str, count: int = 1
    ) -> None:
        """`line` is the namespace and name of the LocalQueue."""
        self._unadmitted[line[1], line[0], queue, reason, cause] += count

    def _not_admitted(self) -> None:
        by_queue: Counter[Labels] = Counter()
        for labels, count in islice(self._unadmitted.items(), MAX_SHOWN):
            by_queue[labels[2:]] += count
            self._add(k.LQ_UNADMITTED, labels, count)
        for labels, count in by_queue.items():
            self._add(k.UNADMITTED, labels, count)

    def _finished(self) -> None:
        by_queue: Counter[str] = Counter()
        records = self._book.workloads.records
        for key in self._book.workloads.finished:
            workload = records[key].workload
            local = self._engine.local_queue(workload.local_queue)
            given = workload.admission
            queue = given.cluster_queue if given else local.cluster_queue if local else ""
            by_queue[queue] += 1
            self._line(workload).finished += 1
        for queue in islice(self._engine.cache.queues, MAX_QUEUES):
            self._add(k.FINISHED_NOW, (queue,), by_queue[queue])

    def _local_queues(self) -> None:
        for record in islice(self._book.catalogue.of_kind("LocalQueue"), MAX_QUEUES):
            namespace, name = record.namespace, record.name
            found = self._book.catalogue.local_queue(namespace, name)
            if found is not None:
                self._local_queue(found, self._lines.get((namespace, name), _Line()))

    def _local_queue(self, queue: LocalQueue, line: _Line) -> None:
        labels = (queue.name, queue.namespace)
        is_open = queue.stop_policy is StopPolicy.NONE
        active = is_open and self._engine.cache.why_inactive(queue.cluster_queue) is None
        for status in ("True", "False", "Unknown"):
            self._add(k.LQ_STATUS, (*labels, status), int(status == str(active)))
        self._add(k.LQ_PENDING, (*labels, "active"), line.active)
        self._add(k.LQ_PENDING, (*labels, "inadmissible"), line.inadmissible)
        self._add(k.LQ_RESERVING_ACTIVE, labels, line.reserving)
        self._add(k.LQ_ADMITTED_ACTIVE, labels, line.admitted)
        self._add(k.LQ_FINISHED_NOW, labels, line.finished)
        state = self._engine.cache.queues.get(queue.cluster_queue)
        numbers = self._engine.cache.numbers
        for group in state.spec.resource_groups if state is not None else ():
            for flavor in group.flavors:
                for quota in flavor.resources:
                    fr = numbers.number(flavor.flavor, quota.resource)
                    which = (*labels, flavor.flavor, quota.resource)
                    reserved = in_units(quota.resource, line.reserved.get(fr, 0))
                    self._add(k.LQ_RESERVATION, which, reserved)
                    self._add(k.LQ_USAGE, which, in_units(quota.resource, line.used.get(fr, 0)))

    # -- cohorts -------------------------------------------------------------------------------

    def _cohort(self, node: QuotaNode, admitted: int) -> None:
        numbers = self._engine.cache.numbers
        parent, root = _cohorts(node)
        self._add(k.COHORT_INFO, (node.name, parent, root or node.name), 1)
        self._add(k.COHORT_ADMITTED_ACTIVE, (node.name,), admitted)
        share = dominant_share(node, numbers).per_mille() if parent else 0
        self._add(k.COHORT_SHARE, (node.name,), share)
        for fr, quota in node.subtree_quota.items():
            flavor, resource = numbers.pair(fr)
            labels = (node.name, flavor, resource)
            self._add(k.COHORT_QUOTA, labels, in_units(resource, quota))
            self._add(k.COHORT_RESERVATION, labels, in_units(resource, node.used(fr)))

    def _fair_usage(self) -> None:
        history = self._engine.history
        for queue in sorted(history.queues())[:MAX_QUEUES] if history is not None else ():
            assert history is not None
            namespace, _, name = queue.partition("/")
            local = self._engine.local_queue(queue)
            into = local.cluster_queue if local is not None else ""
            usage = usage_of(history.figure(queue))
            self._add(k.LQ_FAIR_USAGE, (name, namespace, into), usage)


def _cohorts(node: QuotaNode) -> tuple[str, str]:
    """The parent cohort and the root of its tree; both are empty without a parent."""
    if node.parent is None:
        return "", ""
    return node.parent.name, node.root.name
