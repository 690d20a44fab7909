"""Cost of a hook over the bare simulated driver, both measured in turn in one process."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from tests.bench.entries import Entry, entry
from tests.kit.node import Node
from tests.kit.places import MESON, SHIM, SIM

CARD_CALL_NS = 1000
"""About what a call of the driver costs on a card."""
HOOKBENCH = MESON / "tests" / "hookbench"


def samples(
    node: Node,
    mode: str,
    *,
    rounds: int,
    threads: int = 1,
    live: int = 0,
    processes: int = 1,
    call_ns: int = 0,
) -> list[dict[str, list[float]]]:
    """hookbench inside one grant; several processes of it at once when asked. `call_ns`: what each call of the
    driver costs."""
    command = f"{HOOKBENCH} {mode} {rounds} {threads} {live}"
    script = " & ".join(f"{command} > {node.directory}/bench-{i}.json" for i in range(processes))
    job = node.run(
        f"hook-{mode}-{threads}-{live}-{processes}-{call_ns}",
        "/bin/sh",
        "-c",
        f"{script} & wait",
        flags=("--gpumem", "40Gi", "--cores", "100", "--inject", "environment"),
        env={
            "SLUICE_BENCH_SHIM": str(SHIM / "libcuda.so.1"),
            "SLUICE_BENCH_DRIVER": str(SIM / "libcuda.so.1"),
            **({"SLUICE_SIM_CALL_LATENCY_NS": str(call_ns)} if call_ns else {}),
        },
    )
    out, _ = job.process.communicate(timeout=600)
    if job.process.returncode:
        raise SystemExit(f"hookbench {mode} failed: {out}")
    return [
        json.loads((Path(node.directory) / f"bench-{i}.json").read_text()) for i in range(processes)
    ]


def measure(name: str, node: Node, mode: str, target: str, **options: int) -> Entry:
    bare: list[float] = []
    hooked: list[float] = []
    for sample in samples(node, mode, **options):
        bare += sample["bare_ns"]
        hooked += sample["hooked_ns"]
    before, after = statistics.median(bare), statistics.median(hooked)
    added = [h - b for h, b in zip(hooked, bare, strict=True)]
    return entry(
        name,
        "ns",
        added,
        value=after - before,
        baseline=before,
        ratio=after / before,
        target=target,
    )


def run(node: Node, rounds: int) -> list[Entry]:
    return [
        measure("launch_hook_ns", node, "launch", "<= 5", rounds=rounds),
        measure(
            "launch_hook_3us_ns", node, "launch3000", "<= 80", rounds=rounds, call_ns=CARD_CALL_NS
        ),
        measure("launch_hook_4_threads_ns", node, "launch", "<= 12", rounds=rounds // 2, threads=4),
        measure("launch_hook_4_shapes_ns", node, "mixed4", "<= 6", rounds=rounds),
        measure("launch_hook_16_shapes_ns", node, "mixed16", "<= 10", rounds=rounds),
        measure("launch_hook_2_processes_ns", node, "launch", "", rounds=rounds, processes=2),
        measure("alloc_free_hook_0_live_ns", node, "alloc", "<= 100", rounds=rounds),
        measure(
            "alloc_free_hook_50000_live_ns", node, "alloc", "<= 100", rounds=rounds, live=50_000
        ),
        measure("meminfo_hook_ns", node, "info", "", rounds=rounds),
    ]
