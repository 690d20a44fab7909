"""How long a cycle takes, and how much memory is used, with many workloads waiting.

    python -m tests.kit.conformance.backlog --workloads 100000 [--alike]

All workloads are there at once, in the cohorts and classes of the baseline (see `baseline`); quota is
taken, and then one workload ends at a time and the engine decides until nothing more can be
decided. By default every workload asks for another amount, which is the worst case: no two of them
share their fate, so each of them has to be looked at by itself. With --alike they are of the
baseline's three classes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time_ns

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.scheduler import Scheduler
from queuecontroller.server.collector import Collector
from tests.kit.conformance.baseline import BASELINE, Scenario, prepared, rank, workload_of

MAX_CYCLES = 50
"""After each end. With all of them different there are as many heads as workloads."""


@dataclass(frozen=True, slots=True)
class Backlog:
    pending: int
    """When measuring began."""
    submit_us: float
    """CPU time of taking one in."""
    cycles: int
    """Cycles that had heads; their CPU time follows."""
    p50_ms: float
    p99_ms: float
    worst_ms: float
    admissions: int
    rss_mib: int
    """Most the process ever had."""


def measure(
    workloads: int, *, alike: bool = False, ends: int = 200, scenario: Scenario = BASELINE
) -> Backlog:
    made = prepared(scenario, EngineSettings())
    begin = process_time_ns()
    _fill(made, scenario, workloads, alike)
    submit_us = (process_time_ns() - begin) / 1000 / workloads
    collector = Collector()
    collector.start()  # as the service does
    running: deque[WorkloadKey] = deque()
    _decide(made, running, 10 * MAX_CYCLES)
    pending = sum(map(len, made.pending.values()))
    times_ns: list[int] = []
    admissions = 0
    for _ in range(ends):
        made.delete(running.popleft())
        before = len(running)
        collector.step()
        times_ns += _decide(made, running, MAX_CYCLES)
        admissions += len(running) - before
    collector.stop()
    return Backlog(
        pending,
        round(submit_us, 1),
        len(times_ns),
        rank(times_ns, 50) / 1e6,
        rank(times_ns, 99) / 1e6,
        max(times_ns) / 1e6,
        admissions,
        _most_rss_mib(),
    )


def _most_rss_mib() -> int:
    """Not getrusage: what it says begins with the memory of the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise OSError("/proc/self/status has no VmHWM")


def _fill(made: Scheduler, scenario: Scenario, workloads: int, alike: bool) -> None:
    queues = [
        f"cohort-{cohort}-queue-{number}"
        for number in range(scenario.queues)
        for cohort in range(scenario.cohorts)
    ]
    kinds = [kind for kind in scenario.classes for _ in range(kind.count // 50)]
    for number in range(workloads):
        queue = queues[number % len(queues)]
        turn = number // len(queues)
        kind = kinds[turn % len(kinds)]
        # Up to a third more than the class asks for, in thousandths of a CPU.
        more = 0 if alike else kind.request * (number % 333_331) // 1000
        made.submit(workload_of(queue, kind, turn, number, number + 1, more))


def _decide(made: Scheduler, running: deque[WorkloadKey], most_cycles: int) -> list[int]:
    """CPU time of each cycle that had heads, ns."""
    times_ns = []
    for _ in range(most_cycles):
        begin = process_time_ns()
        result = made.cycle(0)
        if result.heads:
            times_ns.append(process_time_ns() - begin)
        running.extend(one.info.key for one in result.reserved)
        for gone in result.preempted:
            running.remove(gone.target.key)
            made.release(gone.target.key)
            made.submit(gone.target.workload)
        if not (result.reserved or result.preempted or result.more):
            break
    return times_ns


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.conformance.backlog")
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--alike", action="store_true", help="of the baseline's classes")
    options = parser.parse_args(arguments)
    if options.workloads < 1000:
        parser.error("--workloads: at least 1000, or there is no backlog to measure")
    print(json.dumps(asdict(measure(options.workloads, alike=options.alike))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
