"""The promises of the demo and the benchmarks on a real card. Correctness first, then measurements.

A kernel's length is not known here, only that it does the same work each time: shares are launches with a limit over
launches without one. Prints what it saw and exits non-zero if a promise did not hold; copy the output to docs/results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property

from nodeagent.adapters.checks import DRIVER, find_library
from tests.bench.hooks import HOOKBENCH
from tests.gpu import frameworks, kept, libraries
from tests.gpu.scenes import play, rate
from tests.kit.node import Node, NodeError, running, soon_ns
from tests.kit.places import BUILD, SHIM
from tests.kit.report import Report, heading
from tests.kit.workplace import workplace

GIB = 2**30
OUT_OF_MEMORY = 2
SEEN = BUILD / "gpu"


def card() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


class Bare:
    """How fast kernels go without us: measured once for each length, with the card's clocks up."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._rates: dict[int, float] = {}

    def rate(self, iterations: int) -> float:
        if iterations not in self._rates:
            arguments = ("--kernel-ns", str(iterations), "--warm", "1", "--seconds", "3")
            job = self._node.run_bare(f"bare-{iterations}", *arguments)
            self._rates[iterations] = rate(job.result())
        return self._rates[iterations]

    @cached_property
    def per_ms(self) -> int:
        """Iterations of a kernel that takes a millisecond."""
        return round(self.rate(100_000) * 1_000_000)


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


def lone(
    node: Node, report: Report, bare: Bare, what: str, iterations: int, caps: tuple[int, ...]
) -> None:
    heading(f"One tenant, kernels of about {what}")
    alone = bare.rate(iterations)
    for cores in caps:
        job = node.run_tenant(
            f"lone-{cores}-{iterations}",
            *("--kernel-ns", str(iterations), "--warm", "1", "--seconds", "3"),
            flags=("--gpumem", "4Gi", "--cores", str(cores)),
        )
        report.share(f"{cores} % cap, {what}", cores / 100, rate(job.result()) / alone)


def shares(node: Node, report: Report, bare: Bare, quick: bool) -> None:
    per_ms = bare.per_ms
    few = (50,) if quick else (10, 50, 90)
    lone(node, report, bare, "1 ms", per_ms, (10, 50, 90) if quick else (10, 25, 50, 75, 90))
    lone(node, report, bare, "0.1 ms", per_ms // 10, few)
    lone(node, report, bare, "10 ms", per_ms * 10, few)


def together(node: Node, report: Report, bare: Bare) -> None:
    alone = bare.rate(bare.per_ms)
    for parts in ((30, 70), (20, 30, 50)):
        heading(f"{len(parts)} tenants side by side")
        start = soon_ns(3)
        arguments = ("--kernel-ns", str(bare.per_ms), "--warm", "2", "--seconds", "4")
        jobs = {
            cores: node.run_tenant(
                f"beside-{cores}",
                *(*arguments, "--start-ns", start),
                flags=("--gpumem", "4Gi", "--cores", str(cores)),
            )
            for cores in parts
        }
        time.sleep(7)
        own = {
            grant["name"]: grant["devices"][0]["used_ratio"]
            for grant in node.grants()
            if grant["name"].startswith("beside-")
        }
        report.facts.setdefault("together_by_own_accounts", []).append(own)
        for cores, job in jobs.items():
            report.share(f"{cores} % of {len(parts)}", cores / 100, rate(job.result()) / alone)


def told(node: Node, report: Report, bare: Bare) -> None:
    """Figures that the daemon reports about a tenant while it runs; the full output is saved in
    build/gpu/."""
    heading("What the daemon tells")
    arguments = ("--kernel-ns", str(bare.per_ms), "--warm", "0", "--seconds", "5")
    flags = ("--gpumem", "4Gi", "--cores", "50")
    job = node.run_tenant("told", *arguments, "--hold", str(2 * GIB), flags=flags)
    time.sleep(4)
    info, grants, metrics = node.info(), node.grants(), node.metrics()
    SEEN.mkdir(exist_ok=True)
    (SEEN / "top.json").write_text(json.dumps(info, indent=1))
    (SEEN / "ps.json").write_text(json.dumps(grants, indent=1))
    (SEEN / "metrics.txt").write_text(metrics)
    job.result()
    (grant,) = (one for one in grants if one["name"] == "told")
    (device,) = grant["devices"]
    used = device["used_ratio"]
    report.row("share of 50 % as `sluice ps` shows it", "50 %", f"{used}", abs(used - 0.5) <= 0.05)
    charged, (gpu,) = device["memory_used_bytes"], info["gpus"]
    mine = [one for one in info["processes"] if one["grant"] == grant["grant"]]
    report.row(
        "memory of its process, charged and by NVML",
        "NVML's is no more",
        f"{charged / GIB:.3f} and {', '.join(str(one['memory_bytes']) for one in mine)}",
        bool(mine) and all((one["memory_bytes"] or 0) <= charged for one in mine),
    )
    report.row(
        "the card",
        "healthy, with power and temperature",
        f"{gpu['health']}, {gpu['power_watts']} W, {gpu['temperature_celsius']} degrees,"
        f" {gpu['sm_count']} SMs",
        gpu["health"] == "healthy" and bool(gpu["power_watts"]) and bool(gpu["sm_count"]),
    )


def hooks(node: Node, report: Report) -> None:
    heading("What the hooks add, ns a call (median)")
    driver = find_library(DRIVER, os.environ)
    if driver is None:
        raise NodeError("libcuda.so.1 was not found")
    for mode, live in (("launch", 0), ("alloc", 0), ("alloc", 1000), ("info", 0)):
        job = node.run(
            f"hook-{mode}-{live}",
            HOOKBENCH,
            *(mode, "100", "1", str(live)),
            flags=("--gpumem", "40Gi", "--cores", "100", "--inject", "environment"),
            env={
                "SLUICE_BENCH_SHIM": str(SHIM / "libcuda.so.1"),
                "SLUICE_BENCH_DRIVER": str(driver),
            },
        )
        sample = job.result()
        before, after = statistics.median(sample["bare_ns"]), statistics.median(sample["hooked_ns"])
        report.facts.setdefault("hooks", []).append(
            {"mode": mode, "live": live, "bare_ns": before, "added_ns": after - before}
        )
        print(
            f"  {mode:<8} {live:>5} live   bare {before:>9.1f}   with us {after:>9.1f}   added {after - before:>8.1f}"
        )


def doctor(node: Node, report: Report) -> None:
    heading("sluice doctor")
    done = node.cli("doctor", check=False)
    print(done.stdout + done.stderr)
    report.row("it finds what it needs", "exit 0", f"exit {done.returncode}", done.returncode == 0)


def main() -> int:
    report = Report()
    parser = argparse.ArgumentParser(prog="tests/gpu/run", description=__doc__)
    parser.add_argument("--only", metavar="SCENE,…", default="", help="these scenes")
    parser.add_argument("--quick", action="store_true", help="fewer shares and steps: 4 minutes")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n{card()}")
    with workplace() as directory, running(directory, gpus="") as node:
        bare = Bare(node)
        scenes: dict[str, Callable[[], None]] = {
            "doctor": lambda: doctor(node, report),
            "memory": lambda: memory(node, report),
            "told": lambda: told(node, report, bare),
            "shares": lambda: shares(node, report, bare, options.quick),
            "together": lambda: together(node, report, bare),
            "libraries": lambda: libraries.run(node, report),
            "kept": lambda: kept.run(node, report, bare.per_ms, bare.rate(bare.per_ms)),
            "hooks": lambda: hooks(node, report),
            "frameworks": lambda: frameworks.run(node, report, options.quick),
        }
        only = options.only.split(",") if options.only else list(scenes)
        unknown = sorted(set(only) - set(scenes))
        if unknown:
            parser.error(f"--only: no scene {', '.join(unknown)}; there are {', '.join(scenes)}")
        for name in only:
            began = time.monotonic()
            play(report, {name: scenes[name]})
            print(f"  ({name}: {time.monotonic() - began:.0f} s)", flush=True)
        if not report.held:
            print("\nThe daemon's log, its end:\n" + (directory / "daemon.log").read_text()[-4000:])
    SEEN.mkdir(exist_ok=True)
    (SEEN / "facts.json").write_text(json.dumps(report.facts, indent=1) + "\n")
    print("\n" + json.dumps(report.facts))
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
