"""`make bench`: what the hooks cost over the bare simulated driver, and how exact a share is.

Figures are of the simulated GPU: they tell what our code adds and how well it steers, not what a card does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path

from tests.bench.entries import Entry, entry, table, write
from tests.demo.__main__ import workplace
from tests.node import Node, running
from tests.places import BUILD, MESON, SHIM, SIM

HOOKBENCH = MESON / "tests" / "hookbench"
LIMITS_PERCENT = (10, 25, 50, 75, 90)
KERNELS_NS = (100_000, 1_000_000, 10_000_000, 100_000_000)


def hook_samples(
    node: Node, mode: str, *, rounds: int, threads: int = 1, live: int = 0, processes: int = 1
) -> list[dict[str, list[float]]]:
    """hookbench inside one grant; several processes of it at once when asked."""
    command = f"{HOOKBENCH} {mode} {rounds} {threads} {live}"
    script = (
        " & ".join([f"{command} > {node.directory}/bench-{i}.json" for i in range(processes)])
        + " & wait"
    )
    job = node.run(
        f"hook-{mode}-{threads}-{live}-{processes}",
        "/bin/sh",
        "-c",
        script,
        flags=("--gpumem", "40Gi", "--cores", "100"),
        env={
            "SLUICE_BENCH_SHIM": str(SHIM / "libcuda.so.1"),
            "SLUICE_BENCH_DRIVER": str(SIM / "libcuda.so.1"),
        },
    )
    out, _ = job.process.communicate(timeout=600)
    if job.process.returncode:
        raise SystemExit(f"hookbench {mode} failed: {out}")
    return [
        json.loads((Path(node.directory) / f"bench-{i}.json").read_text()) for i in range(processes)
    ]


def hook_entry(name: str, node: Node, mode: str, target: str, **options: int) -> Entry:
    bare: list[float] = []
    hooked: list[float] = []
    for sample in hook_samples(node, mode, **options):
        bare += sample["bare_ns"]
        hooked += sample["hooked_ns"]
    added = [h - b for h, b in zip(hooked, bare, strict=True)]
    value = statistics.median(hooked) - statistics.median(bare)
    return entry(
        name,
        "ns",
        added,
        value=value,
        baseline=statistics.median(bare),
        ratio=statistics.median(hooked) / statistics.median(bare),
        target=target,
    )


def hooks(node: Node, rounds: int) -> list[Entry]:
    return [
        hook_entry("launch_hook_ns", node, "launch", "<= 15", rounds=rounds),
        hook_entry("launch_hook_4_threads_ns", node, "launch", "", rounds=rounds // 2, threads=4),
        hook_entry("launch_hook_2_processes_ns", node, "launch", "", rounds=rounds, processes=2),
        hook_entry("alloc_free_hook_0_live_ns", node, "alloc", "<= 150", rounds=rounds),
        hook_entry(
            "alloc_free_hook_50000_live_ns", node, "alloc", "<= 150", rounds=rounds, live=50_000
        ),
        hook_entry("meminfo_hook_ns", node, "info", "", rounds=rounds),
    ]


def share_cell(node: Node, limit: int | None, kernel_ns: int, sync: bool) -> float:
    """The share of the GPU a lone tenant gets: launches of a known length over wall time."""
    seconds = 12 if kernel_ns >= 100_000_000 else 4
    arguments = ["--kernel-ns", str(kernel_ns), *(["--sync"] if sync else [])]
    name = f"{limit}-{kernel_ns}-{sync}"
    if (
        limit is None
    ):  # a count, not a time: nothing stops a bare program from queueing minutes of work
        job = node.run_bare(
            name,
            *arguments,
            "--warm",
            "0",
            "--launches",
            str(seconds * 1_000_000_000 // kernel_ns // 2),
        )
    else:
        arguments += ["--warm", "1.5", "--seconds", str(seconds)]
        job = node.run_tenant(name, *arguments, flags=("--gpumem", "8Gi", "--cores", str(limit)))
    return float(job.result()["share_ratio"])


def shares(node: Node, quick: bool) -> list[Entry]:
    errors: list[float] = []
    print(
        f"\n{'kernel':>8} {'wait':>6} {'alone':>7}  "
        + "".join(f"{limit:>5} %" for limit in LIMITS_PERCENT)
    )
    kernels = KERNELS_NS[:3] if quick else KERNELS_NS
    for kernel_ns, sync in itertools.product(kernels, (False, True)):
        alone = share_cell(node, None, kernel_ns, sync)
        row = []
        for limit in LIMITS_PERCENT:
            got = share_cell(node, limit, kernel_ns, sync)
            # A program that waits after each launch cannot fill the GPU even without a limit.
            errors.append(abs(got - min(limit / 100, alone)) * 100)
            row.append(got)
        print(
            f"{kernel_ns / 1e6:>5g} ms {'sync' if sync else 'queue':>6} {alone:>7.1%}  "
            + "".join(f"{got:>7.1%}" for got in row),
            flush=True,
        )
    return [
        entry(
            "share_error_mean_points",
            "points",
            errors,
            value=statistics.mean(errors),
            target="<= 2",
        ),
        entry("share_error_max_points", "points", errors, value=max(errors)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 100 ms kernels")
    parser.add_argument("--only", choices=["hooks", "shares"])
    options = parser.parse_args()
    entries: list[Entry] = []
    with workplace() as directory, running(directory, gpus="h100-80gb") as node:
        if options.only != "shares":
            entries += hooks(node, 100 if options.quick else 400)
        if options.only != "hooks":
            entries += shares(node, options.quick)
    print("\n" + table(entries))
    write(BUILD / "bench.json", entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
