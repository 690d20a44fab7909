"""Scene G: the same jobs under NVIDIA's MPS, where its control daemon is on the machine: the baseline for sharing without
time slices, and what breaks when a grant's programs are its clients."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate

CONTROL = "nvidia-cuda-mps-control"
FULL = ("--grid", "1056", "--block", "256")
"""Eight blocks for each multiprocessor of an H100: a kernel that leaves nothing for a neighbour."""


@contextlib.contextmanager
def server(directory: Path) -> Iterator[dict[str, str]]:
    """An MPS control daemon of the scene's own; its variables. No setting of the card is touched."""
    directory.mkdir(parents=True, exist_ok=True)
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(directory), "CUDA_MPS_LOG_DIRECTORY": str(directory)}
    whole = {**os.environ, **env}
    subprocess.run([CONTROL, "-d"], env=whole, check=True, capture_output=True, timeout=20)
    try:
        yield env
    finally:
        subprocess.run(
            [CONTROL], input="quit\n", text=True, env=whole, capture_output=True, timeout=20
        )


def _arguments(stage: Stage, start: str, shape: tuple[str, ...]) -> tuple[str, ...]:
    times = ("--warm", f"{stage.seconds(1)}", "--seconds", f"{stage.seconds(2)}")
    return ("train", *stage.work(stage.per_ms), *times, "--start-ns", start, *shape)


def two(
    stage: Stage, name: str, env: dict[str, str], granted: bool, shape: tuple[str, ...]
) -> None:
    if granted:
        stage.started()
    start = stage.start_ns(2, under_us=granted)
    arguments = _arguments(stage, start, shape)
    if granted:
        label = "".join(one if one.isalnum() else "-" for one in name)
        jobs = [stage.granted(f"{label}-{i}", JOB, *arguments, cores=50, env=env) for i in range(2)]
    else:
        jobs = [stage.bare(JOB, *arguments, env=env) for _ in range(2)]
    alone = (
        rate(stage.bare(JOB, *_arguments(stage, "0", shape)).result())
        if shape
        else stage.alone(stage.per_ms)
    )
    got = [rate(job.result(60)) / alone for job in jobs]
    stage.report.facts[name] = got
    shown = " / ".join(f"{one:.1%}" for one in got)
    stage.report.figure(name, f"{shown}, sum {sum(got):.1%} of one alone without MPS")


def run(stage: Stage) -> None:
    if stage.simulated or not shutil.which(CONTROL):
        stage.report.figure("MPS", f"{CONTROL} is not on this machine")
        return
    stage.alone(stage.per_ms)
    with server(stage.node.directory / "mps") as env:
        parts: dict[str, Callable[[], None]] = {}
        for size, shape in (("small", ()), ("full", FULL)):
            for granted in (False, True):
                name = f"two {'grants' if granted else 'bare jobs'} under MPS, {size} kernels"
                parts[name] = functools.partial(two, stage, name, env, granted, shape)
        play(stage.report, parts)
