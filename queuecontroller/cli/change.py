"""`sluice-queue delete | hold | resume`: what is done to one object, or to those of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from queuecontroller.adapters.client import Client
from queuecontroller.cli.files import add_manifests, complain, printable
from queuecontroller.cli.main import EXIT_USAGE
from queuecontroller.cli.session import (
    Failed,
    add_door,
    add_output,
    connect,
    kind_of,
    object_of,
    print_object,
    read_manifests,
)

_DONE = {"delete": "deleted", "hold": "held", "resume": "resumed"}


def configure(parser: argparse.ArgumentParser) -> None:
    verb = parser.get_default("verb")
    parser.add_argument("kind", metavar="KIND", nargs="?", help="workload, cq, lq, …")
    parser.add_argument("name", metavar="NAME", nargs="?", help="or NAMESPACE/NAME")
    parser.add_argument("-n", "--namespace", metavar="NS", help="default: default")
    add_manifests(parser, required=False)
    if verb == "hold":
        parser.add_argument(
            "--drain", action="store_true", help="a queue: stop what runs through it, too"
        )
    add_output(parser)
    add_door(parser)


def run(options: argparse.Namespace) -> int:
    verb = options.verb
    if bool(options.filename) == bool(options.kind and options.name):
        complain(f"{verb}: give KIND NAME, or -f FILE")
        return EXIT_USAGE
    try:
        targets = list(_targets(options))
        with connect(options) as client:
            done = _calls(options, client)
            changed = [done(*target) for target in targets]
    except Failed as failed:
        complain(str(failed))
        return failed.status
    if options.output:
        print_object(changed if options.filename else changed[0], options.output)
        return 0
    for kind, namespace, name in targets:
        where = f"{namespace}/" if kind in ("Workload", "LocalQueue", "LimitRange") else ""
        print(printable(f"{kind} {where}{name} {_DONE[verb]}"))
    return 0


def _calls(
    options: argparse.Namespace, client: Client
) -> Callable[[str, str, str], dict[str, Any]]:
    if options.verb == "delete":
        return client.delete
    if options.verb == "resume":
        return client.resume
    drain: bool = options.drain
    return lambda kind, namespace, name: client.hold(kind, namespace, name, drain)


def _targets(options: argparse.Namespace) -> Iterable[tuple[str, str, str]]:
    if not options.filename:
        yield object_of(options)
        return
    documents = read_manifests(options.filename)
    # Workloads before the queues they stand in, queues before their flavors.
    for one in reversed(documents):
        head = one.get("metadata")
        kind = one["kind"]
        if not isinstance(head, dict) or not isinstance(head.get("name"), str):
            raise Failed(EXIT_USAGE, f"{kind}: metadata.name: is missing, or no text")
        name = head["name"]
        if kind in ("Job", "Pod"):
            name = f"{kind.lower()}-{name}"
        yield kind_of(kind), str(head.get("namespace") or "default"), name
