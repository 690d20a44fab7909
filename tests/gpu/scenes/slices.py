"""Probe A: the hardware's time slices and the cost of a change of contexts, without Sluice.

Two programs (three in one case) each run a kernel that records when the card was taken from it. All read the same timer, so
that of a gap of one the others' time can be subtracted: what is left are the changes of contexts.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tests.gpu.play import play
from tests.gpu.stage import JOB, SLICES, Stage

SMALL = ("--grid", "1", "--block", "32", "--registers", "4")
FULL = ("--grid", "132", "--block", "256", "--registers", "200", "--shared", str(200 << 10))
"""A block for each multiprocessor of an H100 or H200, with all of its registers and nearly all of its shared memory."""
SIMULATED_KERNEL_MS = 20.0

Span = tuple[int, int]


def running(answer: dict[str, Any]) -> list[Span]:
    """When it had the GPU, by the card's timer: from the end of one jump to the begin of the next."""
    begin, end = answer["begin_ns"], answer["end_ns"]
    spans, at = [], begin
    for jump, length in answer["jump"]:
        spans.append((at, begin + jump))
        at = begin + jump + length
    if answer["jumps"] == len(answer["jump"]):
        spans.append((at, end))
    return spans


def gaps(answer: dict[str, Any]) -> list[Span]:
    begin = answer["begin_ns"]
    return [(begin + jump, begin + jump + length) for jump, length in answer["jump"]]


def common(one: Span, other: Span) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def changes_ns(mine: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[float]:
    """For each gap in which others ran: what is left of it without their time, for each of its changes of contexts."""
    found = []
    for gap in gaps(mine):
        inside = [
            common(gap, span) for other in others for span in running(other) if common(gap, span)
        ]
        if inside:
            found.append((gap[1] - gap[0] - sum(inside)) / (len(inside) + 1))
    return found


def overlap_ratio(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Part of one's running time in which the other ran as well."""
    mine, theirs = running(one), running(other)
    total = sum(end - begin for begin, end in mine)
    both = sum(common(a, b) for a in mine for b in theirs)
    return both / total if total > 0 else 0.0


def _spread_us(values: Sequence[float]) -> str:
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, len(ordered) * part // 10)] / 1e3 for part in (1, 5, 9)]
    return f"p10 {at[0]:.1f}, p50 {at[1]:.1f}, p90 {at[2]:.1f} us of {len(ordered)}"


def _case(stage: Stage, name: str, shapes: Sequence[tuple[str, ...]]) -> None:
    seconds = stage.seconds(2)
    arguments = ["--seconds", f"{seconds}", "--start-ns", stage.start_ns(len(shapes), False)]
    if stage.simulated:
        arguments += ["--kernel-ms", f"{SIMULATED_KERNEL_MS}"]
    jobs = [stage.bare(SLICES, *arguments, *shape) for shape in shapes]
    _tell(stage, name, [job.result(60) for job in jobs])


def _tell(stage: Stage, name: str, answers: Sequence[dict[str, Any]]) -> None:
    first, others = answers[0], answers[1:]
    stage.report.facts[name] = answers
    if not first["jumps"]:  # the simulated driver, or nothing took the GPU from it
        stretched = first["elapsed_p50_ms"] / first["kernel_ms"]
        stage.report.figure(
            f"{name}: a kernel's time over its length",
            f"{stretched:.3f} by events, no jump of the timer",
        )
        return
    stage.report.figure(f"{name}: gaps", _spread_us([end - begin for begin, end in gaps(first)]))
    stage.report.figure(
        f"{name}: slices", _spread_us([end - begin for begin, end in running(first)])
    )
    recorded = [other for other in others if other["jumps"]]
    changes = changes_ns(first, recorded) if recorded else []
    if changes:
        stage.report.facts.setdefault("change_us", {})[name] = statistics.median(changes) / 1e3
        stage.report.figure(f"{name}: a change of contexts", _spread_us(changes))
        stage.report.figure(
            f"{name}: both at once",
            f"{overlap_ratio(first, recorded[0]):.1%} of the first one's time",
        )


def beside_short_kernels(stage: Stage) -> None:
    """The neighbour's kernels take 1 ms: a change can come at the end of one."""
    start = stage.start_ns(2, False)
    seconds = f"{stage.seconds(2)}"
    per_ms = str(stage.per_ms)
    slices = ["--seconds", seconds, "--start-ns", start, *SMALL]
    if stage.simulated:
        slices += ["--kernel-ms", f"{SIMULATED_KERNEL_MS}"]
    neighbour = stage.bare(
        JOB,
        "train",
        "--kernel-ns",
        per_ms,
        "--warm",
        "0",
        "--seconds",
        seconds,
        "--start-ns",
        start,
    )
    probe = stage.bare(SLICES, *slices)
    _tell(stage, "beside kernels of 1 ms", [probe.result(60)])
    stage.report.figure(
        "beside kernels of 1 ms: the neighbour's share",
        f"{neighbour.result(60)['gpu_ns'] / 1e6 / (float(seconds) * 1e3) / (stage.per_ms / 1e6):.1%}",
    )


def run(stage: Stage) -> None:
    play(
        stage.report,
        {
            "alone": lambda: _case(stage, "alone", [SMALL]),
            "two small": lambda: _case(stage, "two small", [SMALL, SMALL]),
            "two full": lambda: _case(stage, "two full", [FULL, FULL]),
            "full beside small": lambda: _case(stage, "full beside small", [FULL, SMALL]),
            "short kernels": lambda: beside_short_kernels(stage),
            "three full": lambda: _case(stage, "three full", [FULL, FULL, FULL]),
        },
    )
