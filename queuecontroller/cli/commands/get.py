"""`sluice-queue get KIND [NAME]`: objects as a table, JSON or YAML; `--watch` streams their
changes."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from queuecontroller.cli.files import complain, printable
from queuecontroller.cli.main import EXIT_USAGE
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_output,
    connect,
    kind_of,
    object_of,
    print_object,
)
from queuecontroller.cli.tables import now, table
from queuecontroller.server.api.client import Client


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help="workloads, cq, lq, flavors, nodes, …")
    parser.add_argument("name", metavar="NAME", nargs="?", help="or NAMESPACE/NAME (default: all)")
    parser.add_argument(
        "-n", "--namespace", metavar="NS", help="only this namespace (default: all)"
    )
    parser.add_argument(
        "-q",
        "--queue",
        default="",
        metavar="NAME",
        help="only workloads of this LocalQueue or ClusterQueue",
    )
    parser.add_argument(
        "-w", "--watch", action="store_true", help="stream changes until interrupted"
    )
    add_output(parser, "table", "wide")
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    try:
        with connect(options) as client:
            return _get(options, client)
    except Failed as failed:
        complain(str(failed))
        return failed.status


def _get(options: argparse.Namespace, client: Client) -> int:
    form = options.output or "table"
    if options.queue and kind_of(options.kind) != "Workload":
        raise Failed(EXIT_USAGE, "--queue is for workloads")
    if options.name is not None:
        kind, namespace, name = object_of(options)
        if options.watch:
            return _watch(client, kind, namespace, options.queue, form, name)
        _show(kind, [client.get(kind, namespace, name)], form, single=True)
        return 0
    kind = kind_of(options.kind)
    if options.watch:
        return _watch(client, kind, options.namespace or "", options.queue, form, "")
    objects = list(client.list(kind, options.namespace or "", options.queue))
    _show(kind, objects, form)
    return 0


def _show(kind: str, objects: list[dict[str, Any]], form: str, single: bool = False) -> None:
    if form in ("json", "yaml"):
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        print_object(objects[0] if single else listed, form)
        return
    if not objects:
        complain(f"no {kind} objects")
        return
    for line in table(kind, objects, form == "wide", now()):
        print(line)


def _watch(client: Client, kind: str, namespace: str, queue: str, form: str, name: str) -> int:
    """Print a table, then a line per change; with JSON and YAML a document per change."""
    first: list[dict[str, Any]] | None = []
    for event, found in client.watch(kind, namespace, queue):
        if name and event != "BOOKMARK" and found["metadata"]["name"] != name:
            continue
        if form == "json":
            if event != "BOOKMARK":
                print(json.dumps({"type": event, "object": found}), flush=True)
            continue
        if form == "yaml":
            if event != "BOOKMARK":
                print("---\n" + yaml.safe_dump({"type": event, "object": found}), flush=True)
            continue
        if first is not None and event == "BOOKMARK":
            _show(kind, first, form)
            first = None
        elif first is not None:
            first.append(found)
        elif event == "DELETED":
            print(printable(f"{found['metadata']['name']} deleted"), flush=True)
        else:
            print(table(kind, [found], form == "wide", now())[-1], flush=True)
    return 0
