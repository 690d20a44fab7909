"""`sluice-queue explain NAME`: why a workload is pending, what would have to change, and when it
may start."""

from __future__ import annotations

import argparse
import json
from typing import Any

from queuecontroller.cli.files import complain, printable
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_namespace,
    add_output,
    connect,
    object_of,
    print_object,
)
from queuecontroller.cli.tables import duration


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the workload, or NAMESPACE/NAME")
    add_namespace(parser)
    add_output(parser)
    add_endpoint(parser)
    parser.set_defaults(kind="workload")


def run(options: argparse.Namespace) -> int:
    try:
        _, namespace, name = object_of(options)
        with connect(options) as client:
            answer = client.explain(namespace, name)
    except Failed as failed:
        complain(str(failed))
        return failed.status
    if options.output:
        print_object(json.loads(answer.json), options.output)
        return 0
    for line in lines_of(answer):
        print(printable(line))
    return 0


def lines_of(answer: Any) -> list[str]:
    status = answer.status
    where = f" in ClusterQueue {status.cluster_queue}" if status.cluster_queue else ""
    lines = [f"{status.workload}: {status.phase}{where}"]
    if status.position:
        lines.append(f"position: {status.position} of {status.waiting}")
    if status.reason or status.message:
        lines.append(f"why: {status.reason}: {status.message}")
    if status.HasField("estimate_seconds"):
        lines.append(f"estimate: about {duration(status.estimate_seconds)}, from recent admissions")
    elif answer.remedies and not json.loads(answer.json)["explanation"]["waitingHelps"]:
        lines.append("estimate: never, unless something is changed")
    lines += turn_lines(json.loads(answer.json).get("explanation") or {})
    lines += [f"it would start if: {one}" for one in answer.remedies]
    return lines


def turn_lines(explanation: dict[str, Any]) -> list[str]:
    """The position of its LocalQueue where past usage orders LocalQueues (admission fair
    sharing)."""
    turn = explanation.get("turn")
    if turn is None:
        return []
    before = [f"{one['name']} ({one['usage']})" for one in turn["servedBefore"]]
    order = f"after {', '.join(before)}" if before else "first"
    return [
        f"order: LocalQueue {turn['localQueue']} has used {turn['usage']} and is served {order}"
    ]
