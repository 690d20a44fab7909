"""Scene H: PyTorch and nvidia-smi: do they run in a grant, keep to it, and what does it cost them?

Without Sluice, with the whole GPU and with half of it are three processes that stand ready at once and work in turn, a
second each, so that a card whose clock drifts treats them alike. A step's processor time is no GPU time: a job that
keeps the GPU busy for 80 % of the time keeps 50/80 of its steps at a cap of 50 %, which is what is wanted of it.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.gpu.jobs.pythons import python_with
from tests.gpu.play import play
from tests.gpu.scenes.libraries import line
from tests.gpu.stage import Stage
from tests.kit.node import Node
from tests.kit.places import SLUICE

JOB = Path(__file__).resolve().parents[1] / "jobs" / "torch_job.py"
KINDS = {
    "train": "training, GPU-bound",
    "small": "training, small steps",
    "shapes": "inference, lengths that change",
    "graphs": "CUDA graphs for batches of 1 to 8",
}
ROUNDS, TURN_S = 3, 1.0
LEAST_RATIO, MARGIN = 0.95, 0.04

Sides = dict[str, subprocess.Popen[str]]


def _start(node: Node, python: str, kind: str, cores: int | None) -> subprocess.Popen[str]:
    command = [python, str(JOB), "turns", "--kind", kind]
    env = node.on_the_driver()
    if cores is not None:
        flags = ["--name", f"{kind}-{cores}", "--gpumem", "10Gi", "--cores", str(cores)]
        command, env = [str(SLUICE), "run", *flags, "--", *command], node.environment()
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _turn(process: subprocess.Popen[str], seconds: float) -> float:
    """Steps a second of one turn."""
    assert process.stdin is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    return float(line(process)["steps_per_s"])


def interleaved(stage: Stage, python: str, kind: str) -> None:
    node, report = stage.started(), stage.report
    sides: Sides = {}
    try:
        for side, cores in (("bare", None), ("whole", 100), ("half", 50)):
            sides[side] = _start(node, python, kind, cores)
        for process in sides.values():
            line(process)  # the model is on the card
        got: dict[str, list[float]] = {side: [] for side in sides}
        busy: list[float] = []
        for _ in range(ROUNDS):
            for side, process in sides.items():
                got[side].append(_turn(process, stage.seconds(TURN_S)))
                if side == "whole" and (grant := node.grant(f"{kind}-100")):
                    busy.append(grant["devices"][0]["used_ratio"])
        middle = {side: statistics.median(values) for side, values in got.items()}
    finally:
        for process in sides.values():
            process.kill()
            process.communicate()
    whole, half = middle["whole"] / middle["bare"], middle["half"] / middle["bare"]
    used = min(1.0, max(busy, default=1.0)) or 1.0
    want = min(1.0, 0.5 / used)
    report.facts[kind] = {"steps_per_s": got, "busy_ratio": busy}
    report.row(
        f"{KINDS[kind]}: whole GPU over bare",
        f">= {LEAST_RATIO:.0%}",
        f"{whole:.1%} ({middle['bare']:.1f} steps/s bare)",
        whole >= LEAST_RATIO,
    )
    report.row(
        f"{KINDS[kind]}: 50 % cap over bare",
        f"{want:.0%} ± 4 (the GPU is busy for {used:.0%})",
        f"{half:.1%}",
        abs(half - want) <= MARGIN,
    )


def collective(stage: Stage, python: str) -> None:
    got = stage.granted("nccl", python, str(JOB), "nccl", cores=50, gpumem="8Gi").result(60)
    stage.report.row(
        "NCCL all-reduce of one process",
        f"{got['expected']:g}",
        f"{got['sum']:g}",
        got["sum"] == got["expected"],
    )


def nvidia_smi(stage: Stage) -> None:
    program = None if stage.simulated else shutil.which("nvidia-smi")
    if program is None:
        stage.report.figure("nvidia-smi", "not on this machine")
        return
    query = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    job = stage.granted("nvidia-smi", program, *query, cores=50, gpumem="8Gi")
    out, _ = job.process.communicate(timeout=60)
    stage.report.row("nvidia-smi inside a grant, MiB", "8192", out.strip(), out.strip() == "8192")


def run(stage: Stage) -> None:
    parts: dict[str, Callable[[], None]] = {"nvidia-smi": lambda: nvidia_smi(stage)}
    python = None if stage.simulated else python_with("torch")
    if python is None:
        stage.report.figure("PyTorch", "not on this machine, or the GPU is simulated")
    else:
        for kind in KINDS:
            parts[kind] = functools.partial(interleaved, stage, python, kind)
        parts["NCCL"] = functools.partial(collective, stage, python)
    play(stage.report, parts)
