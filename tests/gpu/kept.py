"""Guarantees under faults on a real GPU: a share holds while the daemon is killed, a program whose
memory leaves the card goes on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.gpu.libraries import line, on_the_card
from tests.gpu.pythons import python_with
from tests.gpu.scenes import play, rate
from tests.kit.node import Node
from tests.kit.places import SLUICE
from tests.kit.report import Report, heading

GIB = 2**30
JOB = Path(__file__).with_name("torch_job.py")
HELD_GIB = 4


def daemon_killed(node: Node, report: Report, iterations: int, alone: float) -> None:
    heading("The daemon is killed and started again under a tenant")
    arguments = ("--kernel-ns", str(iterations), "--warm", "1", "--seconds", "6")
    job = node.run_tenant("through", *arguments, flags=("--gpumem", "4Gi", "--cores", "40"))
    time.sleep(3)
    node.kill_daemon()
    time.sleep(1)
    node.start()
    report.share("40 % cap, through it all", 0.4, rate(job.result()) / alone)


def spilled(node: Node, report: Report) -> None:
    """Its memory goes to the host by the driver's checkpoint, another has its room, it comes back and is the same."""
    heading("A paused grant's memory on the host")
    python = python_with("torch")
    if python is None:
        print("  no PyTorch on this machine: not tried")
        return
    before = on_the_card(node)
    flags = ("--name", "kept", "--gpumem", "60%", "--cores", "60")
    job = subprocess.Popen(
        [SLUICE, "run", *flags, "--", python, JOB, "keep", "--gib", str(HELD_GIB)],
        env=node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line(job)
        held = on_the_card(node) - before
        began = time.monotonic()
        done = node.cli("pause", "--spill", "kept", check=False)
        spill_s = time.monotonic() - began
        report.row(
            f"{HELD_GIB} GiB of PyTorch's to the host",
            "done",
            f"{spill_s:.1f} s" if done.returncode == 0 else done.stderr[-300:],
            done.returncode == 0,
        )
        if done.returncode:
            return
        left = on_the_card(node) - before
        report.row(
            "what is left of it on the card",
            "nothing to speak of",
            f"{left / GIB:.3f} GiB of {held / GIB:.3f}",
            left < GIB / 4,
        )
        other = node.run_tenant(
            "other",
            *("--launches", "1", "--hold", str(6 * GIB)),
            flags=("--gpumem", "60%", "--cores", "60"),
        ).result()
        report.row(
            "another has its room: 60 % beside 60 %",
            "success",
            f"error {other['hold_result']}",
            other["hold_result"] == 0,
        )
        began = time.monotonic()
        done = node.cli("resume", "kept", check=False)
        back_s = time.monotonic() - began
        report.row(
            "back on the card",
            "done",
            f"{back_s:.1f} s" if done.returncode == 0 else done.stderr[-300:],
            done.returncode == 0,
        )
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
        told = line(job)
        report.row(
            "it goes on, with what it held",
            "the same bytes",
            f"{'the same' if told['same'] else 'others'}, {told['after']} steps since",
            bool(told["same"]) and told["after"] > 0,
        )
        report.facts["spill"] = {"gib": held / GIB, "spill_s": spill_s, "return_s": back_s}
    finally:
        job.kill()
        job.communicate()


def run(node: Node, report: Report, iterations: int, alone: float) -> None:
    scenes: dict[str, Callable[[], None]] = {
        "daemon killed": lambda: daemon_killed(node, report, iterations, alone),
        "spilled": lambda: spilled(node, report),
    }
    play(report, scenes)
