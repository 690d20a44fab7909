"""Kueue's scalability scenarios through our engine, in virtual time: how fast it decides.

    python -m tests.kit.conformance.baseline [--large] [--fair] [--requeue-delay-s 1]

Measured like the recorded run of Kueue's own engine: arrivals and run times pass in virtual time,
only the time inside the engine counts, freed quota is collected for 1 s before the inadmissible
are requeued, and a preempted workload stops at once. Decisions do not depend on the machine; the
speed does. It is CPU time: the engine has one thread and waits for nothing, and what else the
machine does at the moment is no part of deciding.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import process_time_ns

from queuecontroller.scheduler.model.decisions import CycleResult
from queuecontroller.scheduler.model.objects import (
    ClusterQueue,
    ClusterQueuePreemption,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    PreemptionPolicy,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
    WorkloadKey,
)
from queuecontroller.scheduler.model.selectors import LabelSelector
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.scheduler import Scheduler
from queuecontroller.server.collector import Collector

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Equal workloads of every queue: `count` of them, one each `every_ms`, from then on."""

    name: str
    count: int
    request: int
    priority: int
    runs_ms: int
    every_ms: int


@dataclass(frozen=True, slots=True)
class Scenario:
    cohorts: int
    queues: int
    classes: tuple[WorkloadClass, ...]
    nominal: int = 20
    borrowing_limit: int = 100


# The classes of Kueue's test/performance/scheduler configurations.
BASELINE = Scenario(5, 6, (
    WorkloadClass("small", 350, 1, 50, 200, 100),
    WorkloadClass("medium", 100, 5, 100, 500, 500),
    WorkloadClass("large", 50, 20, 200, 1000, 1200),
))  # fmt: skip
LARGE_SCALE = Scenario(10, 100, (
    WorkloadClass("small", 35, 1, 50, 150, 60),
    WorkloadClass("medium", 11, 5, 100, 350, 300),
    WorkloadClass("large", 4, 20, 200, 700, 700),
))  # fmt: skip


@dataclass(slots=True)
class Figures:
    workloads: int = 0
    admissions: int = 0
    preemptions: int = 0
    cycles: int = 0
    heads: int = 0
    engine_ns: int = 0
    """In cycles, in taking workloads in and out, and in collecting garbage as the service does."""
    cycle_ns: list[int] = field(default_factory=list)
    """Time inside each cycle that had any heads."""
    makespan_ms: int = 0
    waits_ms: dict[str, list[int]] = field(default_factory=dict)
    """Time to first admission, by class."""

    def as_dict(self) -> dict[str, object]:
        seconds = self.engine_ns / 1e9
        return {
            "workloads": self.workloads,
            "admissions": self.admissions,
            "preemptions": self.preemptions,
            "cycles": self.cycles,
            "heads": self.heads,
            "engine_s": round(seconds, 3),
            "admissions_per_s": round(self.admissions / seconds) if seconds else 0,
            "p99_cycle_ms": round(rank(self.cycle_ns, 99) / 1e6, 2),
            "worst_cycle_ms": round(max(self.cycle_ns, default=0) / 1e6, 1),
            "makespan_ms": self.makespan_ms,
            "mean_wait_ms": {
                name: round(sum(waits) / len(waits)) for name, waits in self.waits_ms.items()
            },
        }


def rank(values: Sequence[int], percent: int) -> int:
    """The value that so many percent do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0


def prepared(scenario: Scenario, settings: EngineSettings) -> Scheduler:
    """An engine with the scenario's queues, in which no workload waits yet."""
    made = Scheduler(settings)
    made.put_namespace("ns", {})
    made.cache.put_flavor(ResourceFlavor("default"))
    limits = ResourceQuota("cpu", scenario.nominal * 1000, scenario.borrowing_limit * 1000)
    group = ResourceGroup(("cpu",), (FlavorQuotas("default", (limits,)),))
    policy = ClusterQueuePreemption(PreemptionPolicy.LOWER_PRIORITY, PreemptionPolicy.ANY)
    for cohort in range(scenario.cohorts):
        for number in range(scenario.queues):
            name = f"cohort-{cohort}-queue-{number}"
            made.cache.put_cluster_queue(
                ClusterQueue(
                    name,
                    f"cohort-{cohort}",
                    (group,),
                    namespace_selector=LabelSelector(),
                    preemption=policy,
                )
            )
            made.put_local_queue(LocalQueue("ns", name, name))
    made.settle()
    return made


def workload_of(
    queue: str,
    kind: WorkloadClass,
    number: int,
    uid: int,
    created_ns: int,
    more_millicpu: int = 0,
) -> Workload:
    """One of its class; `uid` decides between workloads that are equal in all else."""
    return Workload(
        "ns",
        f"{queue}-{kind.name}-{number}",
        (PodSet("main", 1, {"cpu": kind.request * 1000 + more_millicpu}),),
        queue_name=queue,
        priority=kind.priority,
        uid=str(uid),
        created_ns=created_ns,
    )


class VirtualRun:
    """Plays one scenario. Events are (time, order, action)."""

    def __init__(self, scenario: Scenario, settings: EngineSettings) -> None:
        self.figures = Figures()
        self._scheduler = prepared(scenario, settings)
        self._classes: dict[WorkloadKey, tuple[WorkloadClass, int]] = {}
        self._attempt: dict[WorkloadKey, int] = {}
        """Number of the current admission; an end of an earlier one means nothing."""
        self._waited: set[WorkloadKey] = set()
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = 0
        for cohort in range(scenario.cohorts):
            for number in range(scenario.queues):
                for kind in scenario.classes:
                    self._arrivals(f"cohort-{cohort}-queue-{number}", kind)

    def _at(self, time_ns: int, action: Callable[[int], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_ns, self._count, action))

    def _arrivals(self, queue: str, kind: WorkloadClass) -> None:
        for number in range(kind.count):
            time_ns = (number + 1) * kind.every_ms * MS
            workload = workload_of(queue, kind, number, self.figures.workloads, time_ns)
            self.figures.workloads += 1
            self._classes[workload.key] = (kind, time_ns)
            self._at(time_ns, partial(self._scheduler.submit, workload))

    def run(self) -> Figures:
        collector = Collector()
        collector.start()
        try:
            self._play(collector)
        finally:
            collector.stop()
        return self.figures

    def _play(self, collector: Collector) -> None:
        events, figures = self._events, self.figures
        while events:
            now_ns = events[0][0]
            begin = process_time_ns()
            collector.step()
            while events and events[0][0] == now_ns:
                heapq.heappop(events)[2](now_ns)
            figures.engine_ns += process_time_ns() - begin
            self._decide(now_ns)
            wake_ns = self._scheduler.next_wake_ns()
            if wake_ns is not None and (not events or wake_ns < events[0][0]):
                self._at(wake_ns, _nothing)

    def _decide(self, now_ns: int) -> None:
        """Cycles until nothing more can be decided at this moment."""
        while True:
            begin = process_time_ns()
            result = self._scheduler.cycle(now_ns)
            spent = process_time_ns() - begin
            self.figures.engine_ns += spent
            if result.heads:
                self.figures.cycle_ns.append(spent)
            self.figures.cycles += 1
            self.figures.heads += result.heads
            self._carry_out(result, now_ns)
            if not (result.reserved or result.preempted or result.more):
                return

    def _carry_out(self, result: CycleResult, now_ns: int) -> None:
        figures = self.figures
        for one in result.reserved:
            key = one.info.key
            kind, arrived_ns = self._classes[key]
            figures.admissions += 1
            if key not in self._waited:
                self._waited.add(key)
                figures.waits_ms.setdefault(kind.name, []).append((now_ns - arrived_ns) // MS)
            attempt = self._attempt[key] = self._attempt.get(key, 0) + 1
            self._at(now_ns + kind.runs_ms * MS, partial(self._end, key, attempt))
        begin = process_time_ns()
        for gone in result.preempted:
            figures.preemptions += 1
            self._attempt[gone.target.key] += 1
            self._scheduler.release(gone.target.key, now_ns)
            self._scheduler.submit(gone.target.workload, now_ns)
        figures.engine_ns += process_time_ns() - begin

    def _end(self, key: WorkloadKey, attempt: int, now_ns: int) -> None:
        if self._attempt[key] == attempt:
            self._scheduler.delete(key, now_ns)
            self.figures.makespan_ms = now_ns // MS


def _nothing(now_ns: int) -> None:
    """A moment at which only a cycle is due."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.conformance.baseline")
    parser.add_argument("--large", action="store_true", help="50,000 workloads, 1,000 queues")
    parser.add_argument("--fair", action="store_true", help="with fair sharing")
    parser.add_argument("--requeue-delay-s", type=float, default=1.0)
    options = parser.parse_args(arguments)
    settings = EngineSettings(
        fair_sharing=options.fair, requeue_delay_ns=round(options.requeue_delay_s * 1e9)
    )
    run = VirtualRun(LARGE_SCALE if options.large else BASELINE, settings)
    print(json.dumps(run.run().as_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
