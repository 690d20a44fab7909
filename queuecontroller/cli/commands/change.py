"""`sluice-queue delete | hold | resume`: changes one object, or those of a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from queuecontroller.cli.files import add_manifests, complain, printable
from queuecontroller.cli.main import EXIT_USAGE
from queuecontroller.cli.session import (
    Failed,
    add_endpoint,
    add_output,
    connect,
    kind_of,
    object_of,
    print_object,
    read_manifests,
)
from queuecontroller.server.api.client import Client

_NAMESPACED = ("Workload", "LocalQueue", "LimitRange")
_DONE = {"delete": "deleted", "hold": "held", "resume": "resumed"}


def configure(parser: argparse.ArgumentParser) -> None:
    verb = parser.get_default("verb")
    parser.add_argument("kind", metavar="KIND", nargs="?", help="workload, cq, lq, …")
    parser.add_argument("name", metavar="NAME", nargs="?", help="or NAMESPACE/NAME")
    parser.add_argument("-n", "--namespace", metavar="NS", help="namespace (default: default)")
    add_manifests(parser, required=False)
    if verb == "hold":
        parser.add_argument(
            "--drain", action="store_true", help="of a queue: also stop its running workloads"
        )
    add_output(parser)
    add_endpoint(parser)


def run(options: argparse.Namespace) -> int:
    verb = options.verb
    if bool(options.filename) == bool(options.kind and options.name):
        complain(f"{verb}: give KIND NAME, or -f FILE")
        return EXIT_USAGE
    changed: list[dict[str, Any]] = []
    status = 0
    try:
        targets = list(_targets(options))
        with connect(options) as client:
            done = _calls(options, client)
            for kind, namespace, name in targets:
                changed.append(done(kind, namespace, name))
                if not options.output:  # Printed at once, since a later object may be refused.
                    where = f"{namespace}/" if kind in _NAMESPACED else ""
                    print(printable(f"{kind} {where}{name} {_DONE[verb]}"), flush=True)
    except Failed as failed:
        complain(str(failed))
        status = failed.status
    if options.output and changed:
        print_object(changed if options.filename else changed[0], options.output)
    return status


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
    # Workloads come before their queues, and queues before their flavors.
    for source in reversed(read_manifests(options.filename)):
        head = source.body.get("metadata")
        kind = source.body["kind"]
        if not isinstance(head, dict) or not isinstance(head.get("name"), str):
            line = source.line("metadata.name")
            raise Failed(
                EXIT_USAGE,
                f"{source.file}:{line}: {kind}.metadata.name: is missing, or not a string",
            )
        name = head["name"]
        if kind in ("Job", "Pod"):
            name = f"{kind.lower()}-{name}"
        yield kind_of(kind), str(head.get("namespace") or "default"), name
