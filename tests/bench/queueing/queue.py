"""The queue engine: Kueue's scalability scenarios in virtual time, and how a cycle grows with the line.

Kueue's own engine, in Go and run the same way (virtual time, time inside scheduling only), makes 4,296
admissions a second on the baseline; that recorded figure is what ours is compared with. `docs/queue/queue.md`
says how the two runs differ.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from queuecontroller.scheduler.model.settings import EngineSettings
from tests.bench.entries import Entry, entry
from tests.kit.conformance.baseline import (
    BASELINE,
    LARGE_SCALE,
    Figures,
    Scenario,
    VirtualRun,
    rank,
)

KUEUE_PER_S = 4296.0
LINES = (1_000, 10_000, 100_000)


def scenario(which: Scenario) -> Figures:
    return VirtualRun(which, EngineSettings(requeue_delay_ns=1_000_000_000)).run()


def waits(figures: Figures) -> str:
    shown = [
        f"{name} {rank(values, 50) / 1e3:.1f}/{rank(values, 95) / 1e3:.1f}"
        for name, values in figures.waits_ms.items()
    ]
    return f"p50/p95 s to first admission: {', '.join(shown)}"


def backlog(workloads: int) -> dict[str, Any]:
    """In a process of its own: the memory is the engine's alone."""
    found: dict[str, Any] = json.loads(
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.kit.conformance.backlog",
                "--workloads",
                str(workloads),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    return found


def run(quick: bool) -> list[Entry]:
    baseline = scenario(BASELINE)
    large = scenario(BASELINE if quick else LARGE_SCALE)
    grown = [backlog(count) for count in (LINES[:2] if quick else LINES)]
    print(f"\nqueue, baseline: {baseline.as_dict()}\n  {waits(baseline)}")
    print(f"queue, large: {large.as_dict()}\n  {waits(large)}")
    for one in grown:
        print(
            f"  {one['pending']:>7} in line, all different: {one['p50_ms']:.2f} ms a cycle, "
            f"p99 {one['p99_ms']:.2f} ms, worst {one['worst_ms']:.2f} ms, {one['rss_mib']} MiB"
        )
    cycles_ms = [ns / 1e6 for ns in large.cycle_ns]
    per_s = baseline.admissions / (baseline.engine_ns / 1e9)
    large_per_s = large.admissions / (large.engine_ns / 1e9)
    first, last = grown[0], grown[-1]
    growth = last["p50_ms"] / first["p50_ms"]
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
            value=rank(large.cycle_ns, 99) / 1e6,
            target="<= 50",
        ),
        entry(
            "queue_cycle_worst_ms",
            "ms",
            [max(*baseline.cycle_ns, *large.cycle_ns) / 1e6],
            target="<= 50",
        ),
        entry(
            "queue_cycle_growth_ratio",
            "ratio",
            [growth],
            baseline=1.0,
            ratio=growth,
            target="near 1",
        ),
        entry("queue_rss_mib", "MiB", [last["rss_mib"]], target="<= 1024"),
    ]
