"""Scene D: a server that needs the GPU for 5 ms in 50 beside a training job that takes all it gets, without Sluice and with
it. Both sides' figures, since a good latency is worth nothing if the trainer pays for it with the whole GPU."""

from __future__ import annotations

import functools
from typing import Any

from tests.gpu.play import play
from tests.gpu.stage import JOB, Stage, rate

LEAST_SUM, MOST_P99, LEAST_TRAINER = 0.95, 1.2, 0.75
"""Sum of both over the sum without Sluice; p99 over that without; the trainer's share beside a server of priority."""
BURST, EVERY_MS = 5, 50


def _sides(stage: Stage, start: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    times = ("--warm", f"{stage.seconds(1.5)}", "--seconds", f"{stage.seconds(5)}")
    common = (*stage.work(stage.per_ms), *times, "--start-ns", start)
    return ("train", *common), (
        "serve",
        *common,
        "--burst",
        str(BURST),
        "--every-ms",
        str(EVERY_MS),
    )


def _tell(
    stage: Stage, name: str, trainer: dict[str, Any], server: dict[str, Any]
) -> dict[str, float]:
    alone = stage.alone(stage.per_ms)
    figures = {
        "trainer": rate(trainer) / alone,
        "server": rate(server) / alone,
        "p50_ms": server["p50_ms"],
        "p90_ms": server["p90_ms"],
        "p99_ms": server["p99_ms"],
    }
    figures["sum"] = figures["trainer"] + figures["server"]
    stage.report.facts[name] = figures
    stage.report.figure(
        f"{name}: trainer, server, sum",
        f"{figures['trainer']:.1%}, {figures['server']:.1%}, {figures['sum']:.1%}; a burst's p50 / p90 / p99"
        f" {figures['p50_ms']:.1f} / {figures['p90_ms']:.1f} / {figures['p99_ms']:.1f} ms",
    )
    return figures


def bare(stage: Stage) -> None:
    stage.alone(stage.per_ms)
    train, serve = _sides(stage, stage.start_ns(2, under_us=False))
    jobs = stage.bare(JOB, *train), stage.bare(JOB, *serve)
    _tell(stage, "without Sluice", jobs[0].result(), jobs[1].result())


def granted(stage: Stage, name: str, policy: str, priority: int) -> None:
    stage.started()
    stage.alone(stage.per_ms)
    train, serve = _sides(stage, stage.start_ns(2))
    label = "".join(one if one.isalnum() else "-" for one in name)
    more = ("--policy", policy)
    urgent = ("--priority", str(priority)) if priority else ()
    trainer = stage.granted(f"{label}-trainer", JOB, *train, cores=70, more=more)
    server = stage.granted(f"{label}-server", JOB, *serve, cores=30, more=(*more, *urgent))
    got = _tell(stage, name, trainer.result(), server.result())
    base = stage.report.facts.get("without Sluice")
    if not base or policy == "hard":
        return
    ratio, tail = got["sum"] / base["sum"], got["p99_ms"] / base["p99_ms"]
    report = stage.report
    report.row(
        f"{name}: p99 over that without Sluice", f"<= {MOST_P99}", f"{tail:.2f}", tail <= MOST_P99
    )
    if priority:
        report.row(
            f"{name}: the trainer's part",
            f">= {LEAST_TRAINER:.0%}",
            f"{got['trainer']:.1%}",
            got["trainer"] >= LEAST_TRAINER,
        )
    else:
        report.row(
            f"{name}: sum over that without Sluice",
            f">= {LEAST_SUM:.0%}",
            f"{ratio:.1%}",
            ratio >= LEAST_SUM,
        )


def run(stage: Stage) -> None:
    cases = {
        "elastic": ("elastic", 0),
        "elastic, priority 5": ("elastic", 5),
        "hard 30/70": ("hard", 0),
    }
    parts = {"without Sluice": functools.partial(bare, stage)}
    for name, (policy, priority) in cases.items():
        parts[name] = functools.partial(granted, stage, name, policy, priority)
    play(stage.report, parts)
