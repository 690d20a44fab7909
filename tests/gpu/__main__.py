"""The promises of the demo and the benchmarks on a real card. Correctness first, then measurements.

A kernel's length is not known here, only that it does the same work each time: shares are launches with a limit over
launches without one. Prints what it saw and exits non-zero if a promise did not hold; copy the output to docs/results.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from datetime import UTC, datetime

from nodeagent.adapters.checks import DRIVER, find_library
from tests.bench.hooks import HOOKBENCH
from tests.gpu import frameworks
from tests.kit.node import Node, running, soon_ns
from tests.kit.places import SHIM
from tests.kit.report import Report, heading
from tests.kit.workplace import workplace

GIB = 2**30
OUT_OF_MEMORY = 2


def card() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def rate(answer: dict[str, float]) -> float:
    """Kernels' iterations a second, in billions."""
    return answer["gpu_ns"] / answer["wall_ns"]


def bare(node: Node, iterations: int, launches: int) -> float:
    arguments = ["--kernel-ns", str(iterations), "--warm", "0", "--launches", str(launches)]
    return rate(node.run_bare(f"bare-{iterations}-{launches}", *arguments).result())


def memory(node: Node, report: Report) -> None:
    heading("Memory")
    held = node.run_tenant(
        "memory",
        "--launches",
        "1",
        "--hold",
        str(6 * GIB),
        "--alloc",
        str(6 * GIB),
        flags=("--gpumem", "8Gi", "--cores", "50"),
    ).result()
    report.row(
        "6 GiB under a cap of 8 GiB",
        "success",
        f"error {held['hold_result']}",
        held["hold_result"] == 0,
    )
    report.row(
        "6 GiB more",
        "CUDA_ERROR_OUT_OF_MEMORY",
        f"error {held['alloc_result']}",
        held["alloc_result"] == OUT_OF_MEMORY,
    )
    report.row(
        "memory it believes the GPU has",
        "8 GiB",
        f"{held['total_bytes'] / GIB:.2f} GiB",
        held["total_bytes"] == 8 * GIB,
    )


def lone(node: Node, report: Report, iterations: int, alone: float, what: str) -> None:
    heading(f"One tenant, kernels of about {what}")
    for cores in (10, 25, 50, 75, 90):
        job = node.run_tenant(
            f"lone-{cores}-{iterations}",
            "--kernel-ns",
            str(iterations),
            "--warm",
            "2",
            "--seconds",
            "4",
            flags=("--gpumem", "4Gi", "--cores", str(cores)),
        )
        report.share(f"{cores} % cap, {what}", cores / 100, rate(job.result()) / alone)


def pair(node: Node, report: Report, iterations: int, alone: float) -> None:
    heading("Two tenants side by side")
    start = soon_ns(3)
    jobs = {
        cores: node.run_tenant(
            f"pair-{cores}",
            "--kernel-ns",
            str(iterations),
            "--warm",
            "2",
            "--seconds",
            "5",
            "--start-ns",
            start,
            flags=("--gpumem", "4Gi", "--cores", str(cores)),
        )
        for cores in (30, 70)
    }
    for cores, job in jobs.items():
        report.share(f"{cores} % of two", cores / 100, rate(job.result()) / alone)


def hooks(node: Node) -> None:
    heading("What the hooks add, ns a call (median)")
    driver = find_library(DRIVER, {})
    if driver is None:
        raise SystemExit("libcuda.so.1 was not found")
    for mode, live in (("launch", 0), ("alloc", 0), ("alloc", 1000), ("info", 0)):
        job = node.run(
            f"hook-{mode}-{live}",
            HOOKBENCH,
            mode,
            "100",
            "1",
            str(live),
            flags=("--gpumem", "40Gi", "--cores", "100", "--inject", "environment"),
            env={
                "SLUICE_BENCH_SHIM": str(SHIM / "libcuda.so.1"),
                "SLUICE_BENCH_DRIVER": str(driver),
            },
        )
        sample = job.result()
        before, after = statistics.median(sample["bare_ns"]), statistics.median(sample["hooked_ns"])
        print(
            f"  {mode:<8} {live:>5} live   bare {before:>9.1f}   with us {after:>9.1f}   added {after - before:>8.1f}"
        )


def main() -> int:
    report = Report()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n{card()}")
    with workplace() as directory, running(directory, gpus="") as node:
        memory(node, report)
        per_ms = round(bare(node, 100_000, 2000) * 1_000_000)
        for what, iterations in (
            ("0.1 ms", per_ms // 10),
            ("1 ms", per_ms),
            ("10 ms", per_ms * 10),
        ):
            alone = bare(node, iterations, max(100, 2_000 * per_ms // iterations))
            lone(node, report, iterations, alone, what)
        pair(node, report, per_ms, bare(node, per_ms, 2000))
        hooks(node)
        frameworks.run(node, report)
    print("\n" + json.dumps(report.facts))
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
