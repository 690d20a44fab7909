"""Scenes C and N: shares side by side, with the sum over a lone program's rate and each grant's own account, beside the
same without Sluice; and lone capped programs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate

MARGIN = 0.02
Part = tuple[float, float]
"""A percentage and the length of its kernels in ms."""
CASES: dict[str, list[Part]] = {
    "30/70": [(30, 1), (70, 1)],
    "20/30/50": [(20, 1), (30, 1), (50, 1)],
    "30/70, 0.1 beside 5 ms": [(30, 0.1), (70, 5)],
    "5/95, 0.1 ms": [(5, 0.1), (95, 0.1)],
    "10/20/30/40": [(10, 1), (20, 1), (30, 1), (40, 1)],
    "8 x 12.5": [(12.5, 1)] * 8,
}
LEAST_SUM = {2: 0.985, 3: 0.98}
LEAST_SUM_OF_MORE = 0.96


def _arguments(stage: Stage, iterations: int, start: str) -> tuple[str, ...]:
    times = ("--warm", f"{stage.seconds(1.5)}", "--seconds", f"{stage.seconds(3)}")
    return ("train", *stage.work(iterations), *times, "--start-ns", start)


def _iterations(stage: Stage, ms: float) -> int:
    return max(1, round(stage.per_ms * ms))


def bare(stage: Stage, name: str, lengths_ms: Sequence[float]) -> None:
    """Programs side by side as the hardware slices them."""
    lengths = [_iterations(stage, ms) for ms in lengths_ms]
    alone = [stage.alone(iterations) for iterations in lengths]
    start = stage.start_ns(len(lengths_ms), under_us=False)
    jobs = [stage.bare(JOB, *_arguments(stage, iterations, start)) for iterations in lengths]
    got = [rate(job.result()) / base for job, base in zip(jobs, alone, strict=True)]
    stage.report.facts.setdefault("bare", {})[name] = got
    shown = " / ".join(f"{one:.1%}" for one in got)
    stage.report.figure(f"without Sluice: {name}", f"{shown}, sum {sum(got):.1%}")


def together(stage: Stage, name: str, parts: Sequence[Part]) -> None:
    node, report = stage.started(), stage.report
    lengths = [_iterations(stage, ms) for _, ms in parts]
    alone = [stage.alone(iterations) for iterations in lengths]
    start = stage.start_ns(len(parts))
    label = "".join(one if one.isalnum() else "-" for one in name)
    jobs = [
        stage.granted(f"{label}-{i}", JOB, *_arguments(stage, iterations, start), cores=cores)
        for i, ((cores, _), iterations) in enumerate(zip(parts, lengths, strict=True))
    ]
    middle_ns = int(start) + int((stage.seconds(1.5) + stage.seconds(3) * 0.8) * 1e9)
    time.sleep(max(0.0, (middle_ns - time.monotonic_ns()) / 1e9))
    own = {grant["name"]: grant["devices"][0]["used_ratio"] for grant in node.grants()}
    got = [rate(job.result()) / base for job, base in zip(jobs, alone, strict=True)]
    accounts = [own.get(f"{label}-{i}") for i in range(len(parts))]
    report.facts.setdefault("together", {})[name] = {"got": got, "own_accounts": accounts}
    for (cores, ms), one, account in zip(parts, got, accounts, strict=True):
        report.row(
            f"{name}: {cores:g} % ({ms:g} ms)",
            f"{cores:g} % ± 2 points",
            f"{one:.1%} (own account {'-' if account is None else f'{account:.1%}'})",
            abs(one - cores / 100) <= MARGIN,
        )
    least = LEAST_SUM.get(len(parts), LEAST_SUM_OF_MORE)
    report.row(f"{name}: sum over alone", f">= {least:.1%}", f"{sum(got):.1%}", sum(got) >= least)


def run(stage: Stage) -> None:
    parts: dict[str, Callable[[], None]] = {
        "two bare": lambda: bare(stage, "two, 1 ms", [1, 1]),
        "uneven bare": lambda: bare(stage, "0.1 beside 5 ms", [0.1, 5]),
    }
    for name, case in CASES.items():
        parts[name] = functools.partial(together, stage, name, case)
    play(stage.report, parts)


def lone(stage: Stage, cores: int, ms: float) -> None:
    iterations = _iterations(stage, ms)
    base = stage.alone(iterations)
    times = ("--warm", f"{stage.seconds(0.4)}", "--seconds", f"{stage.seconds(1)}")
    arguments = ("train", *stage.work(iterations), *times)
    got = rate(stage.granted(f"lone-{cores}-{ms:g}", JOB, *arguments, cores=cores).result()) / base
    stage.report.share(f"{cores} % alone, {ms:g} ms", cores / 100, got)


def run_lone(stage: Stage) -> None:
    play(
        stage.report,
        {
            f"{cores} %, {ms:g} ms": functools.partial(lone, stage, cores, ms)
            for ms in (0.1, 10.0)
            for cores in (10, 25, 75, 90)
        },
    )
