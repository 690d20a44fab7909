"""PyTorch and nvidia-smi on a real card: do they run in a grant, keep to it, and what does it cost them?"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.pythons import python_with
from tests.gpu.scenes import play
from tests.kit.node import Node, Tenant
from tests.kit.report import Report, heading

JOB = Path(__file__).with_name("torch_job.py")


class Torch:
    """Runs of torch_job.py, with a grant (flags) or without one."""

    def __init__(self, node: Node, python: str) -> None:
        self._node, self._python, self._runs = node, python, 0

    def start(self, what: str, *arguments: str, flags: tuple[str, ...] | None) -> Tenant:
        self._runs += 1
        name = f"torch-{what}-{self._runs}"
        command = (self._python, str(JOB), what, *arguments)
        if flags is not None:
            return self._node.run(name, *command, flags=flags)
        process = subprocess.Popen(
            command, env=self._node.on_the_driver(), stdout=subprocess.PIPE, text=True
        )
        return Tenant(name, process)

    def run(self, what: str, *arguments: str, flags: tuple[str, ...] | None) -> dict[str, Any]:
        return self.start(what, *arguments, flags=flags).result(180)


def cap(cores: int, policy: str = "hard") -> tuple[str, ...]:
    return ("--gpumem", "8Gi", "--cores", str(cores), "--policy", policy)


def steps(torch: Torch, report: Report, what: str, text: str) -> None:
    times = ("--seconds", "4", "--warm", "2")
    alone = torch.run(what, *times, flags=None)["steps_per_s"]
    whole = torch.run(what, *times, flags=cap(100))["steps_per_s"]
    half = torch.run(what, *times, flags=cap(50))["steps_per_s"]
    report.row(
        f"{text}: with us over without, whole GPU",
        ">= 95 %",
        f"{whole / alone:.1%} ({alone:.1f} steps/s without)",
        whole / alone >= 0.95,
    )
    report.share(f"{text}: 50 % cap", 0.5, half / alone)


def latency(torch: Torch, report: Report) -> None:
    """An inference service beside a training job, time-sliced by the hardware and by us."""
    shown = []
    for flags in ((None, None), (cap(60, "elastic"), (*cap(30, "elastic"), "--priority", "5"))):
        trainer = torch.start("train", "--seconds", "12", flags=flags[0])
        served = torch.run("infer", "--seconds", "6", "--warm", "3", flags=flags[1])
        trainer.result(60)
        shown.append(served)
    before, after = shown
    report.row(
        "inference beside training, p50 / p99 ms",
        "p99 no worse than unmanaged",
        f"{before['p50_ms']:.1f} / {before['p99_ms']:.1f} unmanaged,"
        f" {after['p50_ms']:.1f} / {after['p99_ms']:.1f} with us",
        after["p99_ms"] <= before["p99_ms"] * 1.1,
    )


def collective(torch: Torch, report: Report) -> None:
    got = torch.run("nccl", flags=cap(50))
    report.row(
        "NCCL all-reduce of one process",
        f"{got['expected']:g}",
        f"{got['sum']:g}",
        got["sum"] == got["expected"],
    )


def nvidia_smi(node: Node, report: Report) -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    query = (program, "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    job = node.run("nvidia-smi", *query, flags=("--gpumem", "8Gi", "--cores", "50"))
    out, _ = job.process.communicate(timeout=60)
    report.row("nvidia-smi inside a grant, MiB", "8192", out.strip(), out.strip() == "8192")


def run(node: Node, report: Report, quick: bool) -> None:
    heading("Frameworks")
    nvidia_smi(node, report)
    python = python_with("torch")
    if python is None:
        print("  no PyTorch on this machine: not measured")
        return
    torch = Torch(node, python)
    scenes: dict[str, Callable[[], None]] = {
        "training, eager": lambda: steps(torch, report, "train", "training, eager"),
        "training, CUDA graph": lambda: steps(torch, report, "graph", "training, CUDA graph"),
        "inference, torch.compile": lambda: steps(
            torch, report, "compile", "inference, torch.compile"
        ),
        "NCCL": lambda: collective(torch, report),
        "latency": lambda: latency(torch, report),
    }
    if quick:
        scenes = {name: scenes[name] for name in ("NCCL", "training, eager")}
    play(report, scenes)
