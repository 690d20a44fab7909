"""`sluice-queue simulate -f DIR|FILE …`: the same engine, no cluster, faster than real time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from queuecontroller.cli.main import EXIT_USAGE
from queuecontroller.manifests.documents import Documents, load
from queuecontroller.simulate.run import Player
from queuecontroller.simulate.trace import Arrival, TraceError, by_chance, read_trace


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        required=True,
        metavar="PATH",
        help="a manifest, or a folder of them; repeat for several",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="arrivals as JSON lines (docs/queue-manifests.md)"
    )
    parser.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="arrivals made by chance (default: none)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the chance (default: 0)")
    parser.add_argument(
        "--strict-selectors",
        action="store_true",
        help="a ClusterQueue without namespaceSelector takes nobody, as in Kueue",
    )
    parser.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="default: table"
    )


def run(options: argparse.Namespace) -> int:
    try:
        documents = load(texts_of(options.filename))
        arrivals = _arrivals(options, documents)
    except (OSError, UnicodeDecodeError, TraceError) as error:
        print(f"sluice-queue: {error}", file=sys.stderr)
        return EXIT_USAGE
    for problem in documents.problems:
        print(f"sluice-queue: {problem}", file=sys.stderr)
    if documents.problems:
        return EXIT_USAGE
    player = Player(documents, arrivals, options.strict_selectors)
    player.run()
    report = player.report()
    if options.output == "json":
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(lines_of(report)))
    return 0


def texts_of(paths: Iterable[str]) -> dict[str, str]:
    """Texts by file name; of a folder all YAML files in it. Raises OSError."""
    found: dict[str, str] = {}
    for given in paths:
        path = Path(given)
        files = (
            sorted([*path.glob("**/*.yaml"), *path.glob("**/*.yml")]) if path.is_dir() else [path]
        )
        if not files:
            raise FileNotFoundError(f"{path}: no .yaml files in it")
        for file in files:
            found[str(file)] = file.read_text(encoding="utf-8")
    return found


def _arrivals(options: argparse.Namespace, documents: Documents) -> Sequence[Arrival]:
    found: list[Arrival] = []
    if options.trace:
        try:
            found += read_trace(Path(options.trace).read_text(encoding="utf-8"))
        except TraceError as error:
            raise TraceError(f"{options.trace}: {error}") from None
    if options.jobs:
        covered = {
            queue.name: [
                name for group in queue.resource_groups for name in group.covered_resources
            ]
            for queue in documents.cluster_queues
        }
        found += by_chance(options.seed, documents.local_queues, covered, options.jobs)
    return found


def lines_of(report: dict[str, Any]) -> list[str]:
    lines = [
        f"{report['ended_s']:g} s played in {report['cycles']} cycles:"
        f" {len(report['admitted'])} admitted, {len(report['pending'])} pending,"
        f" {report['finished']} finished, {report['preemptions']} preemptions"
    ]
    for queue, amounts in report["used"].items():
        lines.append(f"\nClusterQueue {queue}")
        used = report["utilization"].get(queue, {})
        for name in sorted({*amounts, *used}):
            mean = f"{used[name]:.1%} in the mean" if name in used else ""
            lines.append(f"  {name:<32} {amounts.get(name, 0):>12} in use  {mean}".rstrip())
        waits = report["waits_s"].get(queue)
        if waits:
            lines.append(
                f"  waiting time of {waits['count']}: p50 {waits['p50']:g} s,"
                f" p95 {waits['p95']:g} s"
            )
    if report["pending"]:
        lines.append("\npending")
        lines += [f"  {name}: {why}" for name, why in report["pending"].items()]
    lines += [f"\nnote: {note}" for note in report["notes"]]
    return lines
