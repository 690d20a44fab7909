"""`sluice-queue top`: nodes with the load of their GPUs, and queues, refreshed periodically."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.cli.files import complain, printable
from queuecontroller.cli.session import Failed, add_endpoint, connect
from queuecontroller.cli.tables import align

HISTORY: Final = 24
"""Number of refreshes that a sparkline shows."""
HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
_BARS: Final = "▁▂▃▄▅▆▇█"
_GREEN, _YELLOW, _RED, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_STATES: Final = {"Ready": _GREEN, "Away": _YELLOW, "Lost": _RED}
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="default: 2"
    )
    parser.add_argument(
        "-n", "--rounds", type=int, default=0, metavar="N", help="stop after N (default: never)"
    )
    parser.add_argument(
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="auto: on a terminal (default)",
    )
    add_endpoint(parser)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not MIN_INTERVAL_S <= found <= MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} seconds"
        )
    return found


def run(options: argparse.Namespace) -> int:
    live = sys.stdout.isatty()
    colored = options.color == "always" or (options.color == "auto" and live)
    loads: dict[str, deque[float | None]] = {}
    rounds = 0
    try:
        with connect(options) as client:
            while True:
                rounds += 1
                nodes, queues = list(client.list("Node")), list(client.list("ClusterQueue"))
                take(loads, nodes)
                size = shutil.get_terminal_size((100, 40))
                lines = lines_of(nodes, queues, loads, colored, time.strftime("%H:%M:%S"))
                most = size.lines - 1 if live else len(lines)
                print((HOME_AND_CLEAR if live else "") + "\n".join(lines[:most]), flush=True)
                if rounds == options.rounds:
                    return 0
                time.sleep(options.interval)
    except Failed as failed:
        complain(str(failed))
        return failed.status


def take(loads: dict[str, deque[float | None]], nodes: Sequence[Mapping[str, Any]]) -> None:
    """Append the mean load of each node's GPUs to its recent loads."""
    for node in nodes:
        gpus = (node.get("status") or {}).get("gpus") or ()
        known = [one["utilizationRatio"] for one in gpus if one.get("utilizationRatio") is not None]
        name = str(node["metadata"]["name"])
        mine = loads.setdefault(name, deque(maxlen=HISTORY))
        mine.append(sum(known) / len(known) if known else None)


def lines_of(
    nodes: Sequence[Mapping[str, Any]],
    queues: Sequence[Mapping[str, Any]],
    loads: Mapping[str, Sequence[float | None]],
    colored: bool,
    clock: str,
) -> list[str]:
    rows = [["NODE", "STATE", "GPUS", "GRANTED", "TIME", "LOAD", f"LAST {HISTORY}"]]
    total = given = 0
    for node in nodes:
        status = node.get("status") or {}
        gpus = status.get("gpus") or ()
        memory = sum(int(one.get("memoryBytes") or 0) for one in gpus)
        mine = sum(int(one.get("givenMemoryBytes") or 0) for one in gpus)
        share = sum(int(one.get("givenSharePpm") or 0) for one in gpus) / 1e6
        total, given = total + memory, given + mine
        name = str(node["metadata"]["name"])
        recent = list(loads.get(name, ()))
        last = recent[-1] if recent else None
        rows.append(
            [
                printable(name),
                str(status.get("state")),
                str(len(gpus)),
                percent(mine / memory if memory else None),
                percent(share / len(gpus) if gpus else None),
                percent(last),
                sparkline(recent),
            ]
        )
    shown = align(rows)
    if colored:
        shown = [
            shown[0],
            *(_painted(line, row) for line, row in zip(shown[1:], rows[1:], strict=True)),
        ]
    lines = [rows_head(nodes, total, given, clock), "", *shown, ""]
    table = [["CLUSTERQUEUE", "COHORT", "PENDING", "RESERVING", "ADMITTED", "SHARE", "STATE"]]
    for queue in sorted(queues, key=lambda one: -int(_status(one).get("pendingWorkloads") or 0)):
        status = _status(queue)
        table.append(
            [
                printable(str(queue["metadata"]["name"])),
                printable(str((queue.get("spec") or {}).get("cohort") or "")),
                str(status.get("pendingWorkloads", 0)),
                str(status.get("reservingWorkloads", 0)),
                str(status.get("admittedWorkloads", 0)),
                str(status.get("weightedShare", 0)),
                "" if status.get("active") else printable(str(status.get("message") or "inactive")),
            ]
        )
    return [*lines, *align(table)]


def rows_head(nodes: Sequence[Mapping[str, Any]], total: int, given: int, clock: str) -> str:
    ready = sum((one.get("status") or {}).get("state") == "Ready" for one in nodes)
    memory = f"{given / 2**30:.0f} of {total / 2**30:.0f} GiB granted"
    return f"sluice-queue  {clock}  {ready} of {len(nodes)} nodes ready, {memory}"


def _status(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = one.get("status") or {}
    return found


def _painted(line: str, row: Sequence[str]) -> str:
    color = _STATES.get(row[1], "")
    if not color:
        return line
    at = line.index(row[1], len(row[0]))  # The name may contain the state's word.
    return f"{line[:at]}{color}{row[1]}{_PLAIN}{line[at + len(row[1]) :]}"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def sparkline(ratios: Sequence[float | None]) -> str:
    """A sparkline: one character per value from 0 to 1, a blank where no value was reported."""
    last = len(_BARS) - 1
    return "".join(
        " " if one is None else _BARS[max(0, min(last, int(one * len(_BARS))))] for one in ratios
    )
