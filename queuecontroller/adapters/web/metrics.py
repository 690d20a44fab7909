"""The exposition of /metrics, from the book as it is: a scrape changes nothing and asks nobody.

At most MOST_QUEUES ClusterQueues are shown one by one; what is left out is logged by its absence
from `kueue_cluster_queue_info`, and the workload counters still count it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import generate_latest

from queuecontroller import metrics as m
from queuecontroller.engine.model.workload_info import ADMITTED
from queuecontroller.engine.quota.cluster_queue import ClusterQueueState
from queuecontroller.engine.quota.shares import dominant_share
from queuecontroller.engine.quota.usage_history import usage_of
from queuecontroller.service.figures import Histogram
from queuecontroller.service.shell import Shell

if TYPE_CHECKING:  # it brings the clients of an API server along, which only a cluster needs
    from queuecontroller.cluster.sharing.desk import SharesDesk

MOST_QUEUES: Final = 2000
MOST_NODES: Final = 1000
"""Shown one by one, those that are ready first; the sums by state count all."""
MOST_DEVICES: Final = 8000
"""Of other vendors."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.:/@% -]")
_FAMILIES: Final[dict[m.Kind, Any]] = {
    m.Kind.GAUGE: GaugeMetricFamily,
    m.Kind.COUNTER: CounterMetricFamily,
    m.Kind.HISTOGRAM: HistogramMetricFamily,
}


class _Samples:
    """By metric, in the order of the catalogue."""

    def __init__(self) -> None:
        self._families = {
            one.name: _FAMILIES[one.kind](one.name, one.help, labels=one.labels)
            for one in m.CATALOGUE
        }

    def add(self, metric: m.Metric, labels: Sequence[str], value: float | None) -> None:
        if value is not None:
            self._families[metric.name].add_metric(_safe(labels), value)

    def histogram(self, metric: m.Metric, labels: Sequence[str], found: Histogram) -> None:
        buckets = found.buckets()
        self._families[metric.name].add_metric(_safe(labels), buckets, sum_value=found.total)

    def families(self) -> Iterable[Family]:
        return self._families.values()


def _safe(labels: Sequence[str]) -> list[str]:
    return [_UNSAFE.sub("_", one)[:128] for one in labels]


class QueueCollector:
    def __init__(self, shell: Shell, version: str, sharing: SharesDesk | None = None) -> None:
        self._shell = shell
        self._version = version
        self._sharing = sharing

    def collect(self) -> Iterable[Family]:
        samples = _Samples()
        samples.add(m.BUILD_INFO, (self._version,), 1)
        self._counters(samples)
        for state in list(self._shell.book.engine.cache.queues.values())[:MOST_QUEUES]:
            self._queue(samples, state)
        self._usage(samples)
        self._service(samples)
        self._sharing_of(samples)
        return samples.families()

    def _counters(self, samples: _Samples) -> None:
        figures = self._shell.book.workloads.figures
        for result, count in figures.attempts.items():
            samples.add(m.ATTEMPTS, (result,), count)
        samples.histogram(m.ATTEMPT_DURATION, (), self._shell.cycle_s)
        for metric, counts in (
            (m.RESERVED, figures.reserved),
            (m.ADMITTED, figures.admitted),
            (m.FINISHED, figures.finished),
        ):
            for queue, count in islice(counts.items(), MOST_QUEUES):
                samples.add(metric, (queue,), count)
        for metric, waits in (
            (m.RESERVE_WAIT, figures.reserve_wait),
            (m.ADMIT_WAIT, figures.admit_wait),
        ):
            for queue, found in islice(waits.items(), MOST_QUEUES):
                samples.histogram(metric, (queue,), found)
        for metric, pairs in ((m.EVICTED, figures.evicted), (m.PREEMPTED, figures.preempted)):
            for pair, count in islice(pairs.items(), MOST_QUEUES):
                samples.add(metric, pair, count)

    def _queue(self, samples: _Samples, state: ClusterQueueState) -> None:
        engine = self._shell.book.engine
        name, spec = state.name, state.spec
        cohort = spec.cohort or ""
        pending = engine.pending.get(name)
        if pending is not None:
            aside = sum(1 for _ in pending.inadmissible())
            samples.add(m.PENDING, (name, "active"), len(pending) - aside)
            samples.add(m.PENDING, (name, "inadmissible"), aside)
        admitted = [one for one in state.workloads.values() if one.workload.is_true(ADMITTED)]
        samples.add(m.RESERVING_ACTIVE, (name,), len(state.workloads))
        samples.add(m.ADMITTED_ACTIVE, (name,), len(admitted))
        samples.add(m.CQ_INFO, (name, cohort, str(spec.queueing_strategy)), 1)
        active = engine.cache.why_inactive(name) is None
        for status in ("active", "pending"):
            samples.add(m.CQ_STATUS, (name, status), int(active == (status == "active")))
        used: Counter[int] = Counter()
        for one in admitted:
            used.update(one.usage)
        numbers = engine.cache.numbers
        for group in spec.resource_groups:
            for flavor in group.flavors:
                for quota in flavor.resources:
                    labels = (cohort, name, flavor.flavor, quota.resource)
                    fr = numbers.number(flavor.flavor, quota.resource)
                    samples.add(m.NOMINAL, labels, quota.nominal)
                    samples.add(m.BORROWING, labels, quota.borrowing_limit)
                    samples.add(m.LENDING, labels, quota.lending_limit)
                    samples.add(m.RESERVATION, labels, state.node.usage.get(fr, 0))
                    samples.add(m.USAGE, labels, used.get(fr, 0))
        if cohort:
            share = dominant_share(state.node, numbers).per_mille()
            samples.add(m.WEIGHTED_SHARE, (name, cohort), share)

    def _usage(self, samples: _Samples) -> None:
        history = self._shell.book.engine.history
        if history is None:
            return
        for queue in sorted(history.queues())[:MOST_QUEUES]:
            namespace, _, name = queue.partition("/")
            usage = usage_of(history.figure(queue))
            samples.add(m.LOCAL_QUEUE_USAGE, (name, namespace), usage)

    def _service(self, samples: _Samples) -> None:
        shell = self._shell
        book, now_ns = shell.book, shell.now_ns()
        samples.add(m.UP, (), int(not shell.why_not_ready))
        samples.add(m.TERM, (), book.journal.term)
        samples.add(m.REVISION, (), book.journal.revision)
        samples.histogram(m.COMMITS, (), shell.writer.commit_s)
        states: Counter[str] = Counter({"ready": 0, "away": 0, "lost": 0})
        nodes = list(book.nodes.nodes.values())
        for node in nodes:
            ready = book.nodes.ready(node, now_ns)
            states["ready" if ready else "lost" if node.record.lost else "away"] += 1
        if len(nodes) > MOST_NODES:
            nodes.sort(key=lambda one: not book.nodes.ready(one, now_ns))
        for node in nodes[:MOST_NODES]:
            gpus = node.capacity.gpus
            given = sum(s.memory_bytes for a in book.nodes.of_node(node.name) for s in a.gpus)
            outside = sum(gpu.outside_memory_bytes for gpu in gpus)
            samples.add(
                m.GPU_MEMORY, (node.name, "capacity"), sum(gpu.memory_bytes for gpu in gpus)
            )
            samples.add(m.GPU_MEMORY, (node.name, "given"), given)
            samples.add(m.GPU_MEMORY, (node.name, "outside"), outside)
        for state, count in states.items():
            samples.add(m.NODES, (state,), count)
        pods = Counter({"decided": 0, "running": 0, "paused": 0})
        pods.update(str(one.state) for one in book.nodes.assignments.values())
        for state, count in pods.items():
            samples.add(m.PODS, (state,), count)
        samples.add(m.UNPLACED, (), book.workloads.unplaced)
        measured = book.room.fragmentation() if book.room is not None else {}
        for request, found in measured.items():
            mig = request.startswith("mig-")
            samples.add(m.FRAGMENTATION, (request, "memory"), found.ppm / 1e6)
            if not mig:  # an instance has its own time
                samples.add(m.FRAGMENTATION, (request, "time"), found.time_ppm / 1e6)
            samples.add(m.GPU_FITS, (request,), found.fits)
        samples.add(m.STEPS, (), shell.writer.steps)
        turns = book.workloads.figures.preemption_turns
        for queue, count in islice(turns.items(), MOST_QUEUES):
            samples.add(m.PREEMPTION_TURNS, (queue,), count)
        samples.add(m.REGRESSIONS, (), book.nodes.regressions_total)
        samples.add(m.STALE, (), book.nodes.stale_total)
        samples.add(m.UNPROVEN, (), book.nodes.unproven_total)
        samples.add(m.DUPLICATES, (), book.nodes.duplicates_total)
        doors = dict(shell.doors())
        samples.add(m.CONNECTIONS, (), doors.pop("open", 0))
        for what, count in doors.items():
            samples.add(m.TURNED_AWAY, (what,), count)
        for loop, at_ns in shell.last_ok_ns.items():
            samples.add(m.LOOP_LAST_OK, (loop,), at_ns / 1e9)

    def _sharing_of(self, samples: _Samples) -> None:
        samples.add(m.HAMI_INFO, (self._version,), 1)
        if self._sharing is None:
            return
        quotas = self._sharing.quotas
        limits = quotas.limits()
        for key, amount in islice(quotas.used().items(), MOST_QUEUES):
            samples.add(m.QUOTA_USED, (*key, str(limits.get(key, ""))), amount)
        for key, amount in islice(limits.items(), MOST_QUEUES):
            samples.add(m.QUOTA_LIMIT, key, amount)
        for node, _, card in islice(self._sharing.foreign.figures(), MOST_DEVICES):
            device = card.device
            labels = (node, device.id, str(device.index), device.type)
            samples.add(m.DEVICE_MEMORY, labels, device.memory_mib << 20)
            samples.add(m.DEVICE_MEMORY_GIVEN, labels, card.memory_mib << 20)
            samples.add(m.DEVICE_CORES, labels, device.cores)
            samples.add(m.DEVICE_CORES_GIVEN, labels, card.cores)
            samples.add(m.DEVICE_SHARED, labels, len(card.holders))
            wider = (*labels, str(device.cores), str(device.memory_mib))
            samples.add(m.DEVICE_OVERVIEW, wider, card.memory_mib << 20)
            if device.memory_mib:
                ratio = card.memory_mib / device.memory_mib
                samples.add(m.DEVICE_MEMORY_RATIO, labels[:3], ratio)


def render(shell: Shell, version: str, sharing: SharesDesk | None = None) -> bytes:
    """The whole text; `sharing`: with what pods that ask for shares take, in a cluster."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(QueueCollector(shell, version, sharing))
    text: bytes = generate_latest(registry)
    return text
