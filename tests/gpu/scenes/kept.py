"""Scene J: a paused grant's memory goes to the host and comes back, of a program that launches a captured graph (the
driver's API) and of PyTorch's."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.gpu.jobs.pythons import python_with
from tests.gpu.play import play
from tests.gpu.scenes.libraries import line, on_the_card
from tests.gpu.stage import Stage
from tests.kit.places import SLUICE, TENANT

GIB = 2**30
JOB = Path(__file__).resolve().parents[1] / "jobs" / "torch_job.py"
HELD_GIB = 4


def _spill(stage: Stage, name: str, before: int) -> bool:
    """Out; another grant of 60 % in its room; back. False if the driver refused."""
    node, report = stage.node, stage.report
    held = on_the_card(node) - before
    began = time.monotonic()
    done = node.cli("pause", "--spill", name, check=False)
    spill_s = time.monotonic() - began
    report.row(
        f"{name}: {HELD_GIB} GiB to the host",
        "done",
        f"{spill_s:.1f} s" if done.returncode == 0 else done.stderr[-300:],
        done.returncode == 0,
    )
    if done.returncode:
        return False
    left = on_the_card(node) - before
    report.row(
        f"{name}: what is left of it on the card",
        "nothing to speak of",
        f"{left / GIB:.3f} GiB of {held / GIB:.3f}",
        left < GIB / 4,
    )
    other = stage.granted(
        "other", TENANT, "--launches", "1", "--hold", str(6 * GIB), cores=60, gpumem="60%"
    ).result(60)
    report.row(
        f"{name}: another has its room, 60 % beside 60 %",
        "error 0",
        f"error {other['hold_result']}",
        other["hold_result"] == 0,
    )
    began = time.monotonic()
    done = node.cli("resume", name, check=False)
    back_s = time.monotonic() - began
    report.row(
        f"{name}: back on the card",
        "done",
        f"{back_s:.1f} s" if done.returncode == 0 else done.stderr[-300:],
        done.returncode == 0,
    )
    report.facts[name] = {"gib": held / GIB, "spill_s": spill_s, "return_s": back_s}
    return done.returncode == 0


def graph(stage: Stage) -> None:
    before = on_the_card(stage.started())
    times = ("--warm", "0.2", "--report", "0.1", "--seconds", "120")
    arguments = ("--door", "graph", "--kernel-ns", str(stage.per_ms), "--hold", str(HELD_GIB * GIB))
    job = stage.granted("graph", TENANT, *arguments, *times, cores=60, gpumem="60%")
    try:
        job.report()
        if _spill(stage, "graph", before):
            after = job.report(after_ns=time.monotonic_ns())
            stage.report.row(
                "graph: it goes on", "launches", f"{after:.1%} of a lone rate of 100 %", after > 0
            )
    finally:
        job.kill()


def pytorch(stage: Stage) -> None:
    python = python_with("torch")
    if python is None:
        stage.report.figure("PyTorch", "not on this machine")
        return
    before = on_the_card(stage.started())
    flags = ("--name", "torch", "--gpumem", "60%", "--cores", "60")
    job = subprocess.Popen(
        [SLUICE, "run", *flags, "--", python, str(JOB), "keep", "--gib", str(HELD_GIB)],
        env=stage.node.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line(job)
        if not _spill(stage, "torch", before):
            return
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
        told = line(job)
        stage.report.row(
            "torch: it goes on, with what it held",
            "the same bytes",
            f"{'the same' if told['same'] else 'others'}, {told['after']} steps since",
            bool(told["same"]) and told["after"] > 0,
        )
    finally:
        job.kill()
        job.communicate()


def run(stage: Stage) -> None:
    play(stage.report, {"graph": lambda: graph(stage), "PyTorch": lambda: pytorch(stage)})
