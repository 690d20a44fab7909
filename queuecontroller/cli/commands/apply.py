"""`sluice-queue apply -f …`: applies queues, flavors and priorities, and submits Jobs, Pods and
Workloads. A call is all or nothing; more than 200 objects are sent as several calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from queuecontroller.cli.files import add_manifests, complain, printable
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_output,
    connect,
    placed,
    print_object,
    read_manifests,
)
from queuecontroller.kueueapi.manifests.sources import Source
from queuecontroller.server.api.client import OBJECTS_A_CALL, Client, Refused


def configure(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="validate on the server without applying"
    )
    add_output(parser)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    applied: list[dict[str, str]] = []
    status = 0
    try:
        sources = read_manifests(options.filename)
        with connect(options) as client:
            for start in range(0, len(sources), OBJECTS_A_CALL):
                _apply(client, sources[start : start + OBJECTS_A_CALL], options.dry_run, applied)
    except Failed as failed:
        complain(str(failed))
        status = failed.status
    if status and not applied:
        return status
    if options.output:
        print_object(applied, options.output)
        return status
    for one in applied:
        where = f"{one['namespace']}/" if one["namespace"] else ""
        print(printable(f"{one['kind']} {where}{one['name']} {one['action']}"))
    return status


def _apply(
    client: Client, sources: Sequence[Source], dry_run: bool, applied: list[dict[str, str]]
) -> None:
    """Send one call, which applies all its objects or none."""
    try:
        applied += client.apply([dict(one.body) for one in sources], dry_run)
    except Refused as refused:
        raise Refused(refused.code, placed(str(refused), sources)) from None
