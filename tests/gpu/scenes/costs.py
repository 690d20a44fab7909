"""Probe B: what the driver's calls cost here, and NVML's list of processes with one and with eight of them."""

from __future__ import annotations

from tests.gpu.play import play
from tests.gpu.stage import COSTS, Stage
from tests.kit.places import TENANT

FULL_QUEUE = 10_000
IDLERS = 7


def _measure(stage: Stage, name: str) -> None:
    kernels = max(500, int(FULL_QUEUE * stage.scale))
    answer = stage.bare(COSTS, str(kernels), str(max(1, stage.per_ms // 200))).result(60)
    del answer["reports"]
    stage.report.facts[name] = answer
    for call, value in answer.items():
        if call.endswith("_ns"):
            stage.report.figure(f"{name}: {call.removesuffix('_ns')}", f"{value:.0f} ns")
    plain = answer["queue_event_each_0_ms"]
    for each in (100, 10, 1):
        added_ns = (answer[f"queue_event_each_{each}_ms"] - plain) * 1e6 / (kernels / each)
        stage.report.figure(
            f"{name}: an event after every {each} kernels of 5 us",
            f"{added_ns:.0f} ns for each event ({plain:.1f} ms without)",
        )


def crowded(stage: Stage) -> None:
    jobs = [
        stage.bare(TENANT, "--warm", "0", "--launches", "1", "--idle", "60") for _ in range(IDLERS)
    ]
    try:
        for job in jobs:
            assert job.process.stdout is not None
            job.process.stdout.readline()  # its context exists now
        _measure(stage, "eight processes")
    finally:
        for job in jobs:
            job.kill()


def run(stage: Stage) -> None:
    play(
        stage.report,
        {"one process": lambda: _measure(stage, "one process"), "eight": lambda: crowded(stage)},
    )
