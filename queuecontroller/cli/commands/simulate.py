"""`sluice-queue simulate -f DIR|FILE …`: runs the same scheduler without a cluster, faster than
real time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from queuecontroller.cli.files import (
    Unreadable,
    add_manifests,
    complain,
    path,
    read_text,
    read_texts,
)
from queuecontroller.cli.main import EXIT_USAGE
from queuecontroller.cli.simulate.nodes import NodeNews, split_trace
from queuecontroller.cli.simulate.run import Player
from queuecontroller.cli.simulate.trace import Arrival, TraceError, by_chance, read_trace
from queuecontroller.kueueapi.manifests.documents import Documents, load

MAX_RANDOM_JOBS: Final = 1_000_000
"""Limit of --jobs; each takes about 3 KiB."""

SHOWN_POINTS: Final = 20
"""Rows of the timeline in a table; JSON has more."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser)
    parser.add_argument(
        "--trace",
        type=path,
        metavar="FILE",
        help="arrivals as JSON lines (docs/queue/manifests.md)",
    )
    parser.add_argument(
        "--jobs",
        type=_count,
        default=0,
        metavar="N",
        help="number of random arrivals (default: none)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of --jobs (default: 0)")
    parser.add_argument(
        "--strict-selectors",
        action="store_true",
        help="a ClusterQueue without namespaceSelector admits no namespace, as in Kueue",
    )
    parser.add_argument(
        "--consolidation",
        type=_count,
        metavar="SECONDS",
        help="restart workloads of one pod on other GPUs where a pending one fits nowhere else,"
        " each at most once in so many seconds, and compare with a run without",
    )
    parser.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="default: table"
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) <= MAX_RANDOM_JOBS):
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 0 to {MAX_RANDOM_JOBS}, got {text!r}"
        )
    return int(text)


def run(options: argparse.Namespace) -> int:
    try:
        documents = load(read_texts(options.filename))
        arrivals, news = _arrivals(options, documents)
    except (Unreadable, TraceError) as error:
        complain(str(error))
        return EXIT_USAGE
    if documents.problems:
        complain("\n".join(map(str, documents.problems)))
        return EXIT_USAGE
    report = _report(options, documents, arrivals, news, options.consolidation)
    if options.consolidation is not None and "gpus" in report:
        report["without_moves"] = _outcome(_report(options, documents, arrivals, news, None))
    if options.output == "json":
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(lines_of(report)))
    return 0


def _report(
    options: argparse.Namespace,
    documents: Documents,
    arrivals: Sequence[Arrival],
    news: Sequence[NodeNews],
    cooldown_s: int | None,
) -> dict[str, Any]:
    player = Player(documents, arrivals, options.strict_selectors, news, cooldown_s)
    player.run()
    return player.report()


def _outcome(report: dict[str, Any]) -> dict[str, Any]:
    """The figures that moves change."""
    return {
        "memory_used_ratio": report["gpus"]["memory_used_ratio"],
        "ended_s": report["ended_s"],
        "waits_s": report["waits_s"],
    }


def _arrivals(
    options: argparse.Namespace, documents: Documents
) -> tuple[Sequence[Arrival], Sequence[NodeNews]]:
    found: list[Arrival] = []
    news: list[NodeNews] = []
    if options.trace:
        try:
            taken = {str(one.key) for one in documents.workloads}
            text, news = split_trace(read_text(Path(options.trace)))
            found += read_trace(text, taken)
        except TraceError as error:
            raise TraceError(f"{options.trace}: {error}") from None
    if options.jobs:
        covered = {
            queue.name: [
                name for group in queue.resource_groups for name in group.covered_resources
            ]
            for queue in documents.cluster_queues
        }
        taken = {f"{one.namespace}/{one.name}" for one in found}
        taken |= {str(one.key) for one in documents.workloads}
        found += by_chance(options.seed, documents.local_queues, covered, options.jobs, taken)
    return found, news


def lines_of(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{report['ended_s']:g} s simulated in {report['cycles']} cycles:"
        f" {len(report['admitted'])} admitted, {len(report['pending'])} pending,"
        f" {report['finished']} finished, {report['preemptions']} preemptions"
    ]
    for queue, amounts in report["used"].items():
        lines.append(f"\nClusterQueue {queue}")
        used = report["utilization"].get(queue, {})
        for name in sorted({*amounts, *used}):
            mean = f"{used[name]:.1%} on average" if name in used else ""
            lines.append(f"  {name:<32} {amounts.get(name, 0):>12} in use  {mean}".rstrip())
        waits = report["waits_s"].get(queue)
        if waits:
            lines.append(
                f"  waiting time of {waits['count']}: p50 {waits['p50']:g} s,"
                f" p95 {waits['p95']:g} s"
            )
    if "gpus" in report:
        lines += _gpu_lines(report)
    if report["pending"]:
        lines.append("\npending")
        lines += [f"  {name}: {why}" for name, why in report["pending"].items()]
    lines += [f"\nnote: {note}" for note in report["notes"]]
    return lines


def _gpu_lines(report: dict[str, Any]) -> list[str]:
    gpus = report["gpus"]
    lines = [f"\nGPUs: {gpus['memory_used_ratio']:.1%} of the memory in use on average"]
    if "without_moves" in report:
        lines += _move_lines(report)
    lines.append("  fragmentation of free memory      end    mean   worst    fit")
    for name, one in gpus["fragmentation"].items():
        lines.append(
            f"  {name:<30} {one['end']:>7.1%} {one['mean']:>7.1%} {one['worst']:>7.1%}"
            f" {one['fits']:>6}"
        )
    points = gpus["timeline"]
    step = -(-len(points) // SHOWN_POINTS) or 1
    shown = points[::step]
    names = list(shown[0]["fragmentation"]) if shown else []
    lines.append(
        "\n  over time  running pending     free MiB " + " ".join(f"{n:>8}" for n in names)
    )
    for one in shown:
        parts = " ".join(f"{one['fragmentation'].get(name, 0.0):>8.1%}" for name in names)
        lines.append(
            f"  {one['at_s']:>7g} s {one['running']:>8} {one['pending']:>7}"
            f" {one['free_memory_mib']:>12} {parts}"
        )
    if report["placed"]:
        lines.append("\nplaced at the end")
    for key, pods in report["placed"].items():
        for pod in pods:
            lines.append(f"  {key}: {pod['node']}: {'; '.join(pod['gpus'])}")
    return lines


def _move_lines(report: dict[str, Any]) -> list[str]:
    without = report["without_moves"]
    lines = [
        f"  moves: {report['moves']}, {report['moved_s']:g} s of work done again;"
        f" without moves {without['memory_used_ratio']:.1%} of the memory in use,"
        f" ended after {without['ended_s']:g} s"
    ]
    for queue, waits in report["waits_s"].items():
        before = without["waits_s"].get(queue)
        if before is not None:
            lines.append(
                f"  waiting time in ClusterQueue {queue}: p95 {waits['p95']:g} s,"
                f" without moves {before['p95']:g} s"
            )
    return lines
