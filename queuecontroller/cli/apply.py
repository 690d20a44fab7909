"""`sluice-queue apply -f …`: queues, flavors and priorities take effect, Jobs, Pods and Workloads
are submitted; all of one call or nothing."""

from __future__ import annotations

import argparse

from queuecontroller.cli.files import add_manifests, complain, printable
from queuecontroller.cli.session import (
    Failed,
    add_door,
    add_output,
    connect,
    print_object,
    read_manifests,
)


def configure(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser)
    parser.add_argument("--dry-run", action="store_true", help="check only, on the server")
    add_output(parser)
    add_door(parser)


def run(options: argparse.Namespace) -> int:
    try:
        documents = read_manifests(options.filename)
        with connect(options) as client:
            applied = list(client.apply(documents, options.dry_run))
    except Failed as failed:
        complain(str(failed))
        return failed.status
    if options.output:
        print_object(applied, options.output)
        return 0
    for one in applied:
        where = f"{one['namespace']}/" if one["namespace"] else ""
        print(printable(f"{one['kind']} {where}{one['name']} {one['action']}"))
    return 0
