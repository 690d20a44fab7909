"""Scene E: what the hooks add to calls, and programs whose launches have ever new shapes, without and with Sluice."""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Callable

from nodeagent.adapters.checks import DRIVER, find_library
from tests.bench.hooks import HOOKBENCH
from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate
from tests.kit.node import NodeError
from tests.kit.places import SHIM, SIM

CALLS = (
    ("launch", 1, 0),
    ("launch", 4, 0),
    ("mixed4", 1, 0),
    ("alloc", 1, 0),
    ("alloc", 1, 1000),
    ("info", 1, 0),
)
"""(mode, threads, live allocations) of hookbench."""
ROUNDS = 60
SHAPES = (("a new shape every 32, 10 us", 0.01, 32), ("a new shape every 8, 50 us", 0.05, 8))
LEAST_RATIO, MARGIN = 0.97, 0.02


def added(stage: Stage, mode: str, threads: int, live: int, cores: int) -> None:
    driver = SIM / "libcuda.so.1" if stage.simulated else find_library(DRIVER, os.environ)
    if driver is None:
        raise NodeError("libcuda.so.1 was not found")
    rounds = str(max(6, int(ROUNDS * stage.scale)))
    job = stage.granted(
        f"hook-{mode}-{threads}-{live}-{cores}",
        HOOKBENCH,
        *(mode, rounds, str(threads), str(live)),
        cores=cores,
        gpumem="20Gi",
        more=("--inject", "environment"),
        env={"SLUICE_BENCH_SHIM": str(SHIM / "libcuda.so.1"), "SLUICE_BENCH_DRIVER": str(driver)},
    )
    sample = job.result(60)
    before, after = statistics.median(sample["bare_ns"]), statistics.median(sample["hooked_ns"])
    name = f"{mode}, {threads} threads, {live} live, {cores} %"
    stage.report.facts[name] = {"bare_ns": before, "added_ns": after - before}
    stage.report.figure(name, f"{after - before:+.1f} ns on {before:.1f}")


def shapes(stage: Stage, name: str, ms: float, every: int) -> None:
    iterations = max(1, round(stage.per_ms * ms))
    times = ("--warm", f"{stage.seconds(0.5)}", "--seconds", f"{stage.seconds(1.5)}")
    arguments = ("shapes", *stage.work(iterations), "--shape-every", str(every), *times)
    base = rate(stage.bare(JOB, *arguments).result())
    report = stage.report
    for cores, want in ((100, 1.0), (50, 0.5)):
        job = stage.granted(f"shapes-{every}-{cores}", JOB, *arguments, cores=cores)
        got = rate(job.result()) / base
        right = got >= LEAST_RATIO if cores == 100 else abs(got - want) <= MARGIN
        wanted = f">= {LEAST_RATIO:.0%} of bare" if cores == 100 else "50 % ± 2 of bare"
        report.row(f"{name}: {cores} %", wanted, f"{got:.1%}", right)


def run(stage: Stage) -> None:
    parts: dict[str, Callable[[], None]] = {}
    for name, ms, every in SHAPES:
        parts[name] = functools.partial(shapes, stage, name, ms, every)
    for mode, threads, live in CALLS:
        parts[f"{mode}, {threads} threads, {live} live"] = functools.partial(
            added, stage, mode, threads, live, 100
        )
    parts["launch at 50 %"] = functools.partial(added, stage, "launch", 1, 0, 50)
    play(stage.report, parts)
