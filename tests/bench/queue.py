"""The queue engine: Kueue's scalability scenarios in virtual time, and how a cycle grows with the line.

Kueue's own engine, in Go and run the same way (virtual time, time inside scheduling only), makes 4,296
admissions a second on the baseline; that recorded figure is what ours is compared with.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time

from queuecontroller.engine.model import (
    ClusterQueue,
    FlavorQuotas,
    LocalQueue,
    PodSet,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Workload,
)
from queuecontroller.engine.scheduler import Scheduler
from queuecontroller.engine.selectors import LabelSelector
from queuecontroller.engine.settings import EngineSettings
from queuecontroller.testing.baseline import (
    BASELINE,
    LARGE_SCALE,
    Figures,
    Scenario,
    VirtualRun,
    rank,
)
from tests.bench.entries import Entry, entry

KUEUE_PER_S = 4296.0
QUEUES = 100
LINES = (1_000, 10_000, 100_000)


def scenario(which: Scenario) -> Figures:
    gc.collect()
    played = VirtualRun(which, EngineSettings(requeue_delay_ns=1_000_000_000))
    gc.freeze()
    try:
        return played.run()
    finally:
        gc.unfreeze()


def waits(figures: Figures) -> str:
    shown = [
        f"{name} {rank(values, 50) / 1e3:.1f}/{rank(values, 95) / 1e3:.1f}"
        for name, values in figures.waits_ms.items()
    ]
    return f"p50/p95 s to first admission: {', '.join(shown)}"


def cycle_with_a_line_of(count: int) -> list[float]:
    """ms of the cycles after one of the running ends, with so many in line."""
    made = Scheduler(EngineSettings())
    made.put_namespace("ns", {})
    made.cache.put_flavor(ResourceFlavor("default"))
    for number in range(QUEUES):
        group = ResourceGroup(("cpu",), (FlavorQuotas("default", (ResourceQuota("cpu", 1000),)),))
        name = f"q{number}"
        made.cache.put_cluster_queue(
            ClusterQueue(
                name, f"cohort-{number % 10}", (group,), namespace_selector=LabelSelector()
            )
        )
        made.put_local_queue(LocalQueue("ns", name, name))
    made.settle()
    for number in range(count + QUEUES):
        pods = (PodSet("main", 1, {"cpu": 1000}),)
        made.submit(
            Workload("ns", f"w{number}", pods, queue_name=f"q{number % QUEUES}", uid=str(number)),
            number,
        )
    running: list[str] = []
    now_ns = count * 2
    while True:
        result = made.cycle(now_ns)
        running += [one.info.key for one in result.reserved]
        if not (result.reserved or result.more):
            break
    gc.freeze()
    taken = []
    for _ in range(300):
        now_ns += 1000
        made.delete(running.pop(0), now_ns)  # type: ignore[arg-type]
        begin = time.process_time()
        result = made.cycle(now_ns)
        taken.append((time.process_time() - begin) * 1e3)
        running += [one.info.key for one in result.reserved]
    gc.unfreeze()
    return taken


def run(quick: bool) -> list[Entry]:
    baseline = scenario(BASELINE)
    large = scenario(BASELINE if quick else LARGE_SCALE)
    lines = LINES[:2] if quick else LINES
    grown = {count: cycle_with_a_line_of(count) for count in lines}
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nqueue, baseline: {baseline.as_dict()}\n  {waits(baseline)}")
    print(f"queue, large: {large.as_dict()}\n  {waits(large)}")
    for count, taken in grown.items():
        print(f"  {count:>7} in line: {statistics.median(taken):.3f} ms a cycle")
    cycles_ms = [ns / 1e6 for ns in baseline.cycle_ns]
    per_s = baseline.admissions / (baseline.engine_ns / 1e9)
    large_per_s = large.admissions / (large.engine_ns / 1e9)
    first, last = (statistics.median(grown[count]) for count in (lines[0], lines[-1]))
    return [
        entry(
            "queue_baseline_admissions_per_s",
            "1/s",
            [per_s],
            baseline=KUEUE_PER_S,
            ratio=per_s / KUEUE_PER_S,
            target=">= 2200",
        ),
        entry("queue_large_admissions_per_s", "1/s", [large_per_s], target=">= 1000"),
        entry(
            "queue_cycle_p99_ms",
            "ms",
            cycles_ms,
            value=rank(baseline.cycle_ns, 99) / 1e6,
            target="<= 50",
        ),
        entry(
            "queue_cycle_growth_ratio",
            "ratio",
            grown[lines[-1]],
            value=last / first,
            baseline=first,
            ratio=last / first,
            target="near 1",
        ),
        entry("queue_peak_rss_mib", "MiB", [peak_mib], target="<= 1024"),
    ]
