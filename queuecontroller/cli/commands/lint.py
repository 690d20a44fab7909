"""`sluice-queue lint -f DIR|FILE …`: finds errors across a set of manifests."""

from __future__ import annotations

import argparse
import json

from queuecontroller.cli.files import Unreadable, add_manifests, complain, printable, read_texts
from queuecontroller.cli.lint import Finding, Severity, lint
from queuecontroller.cli.main import EXIT_NO, EXIT_USAGE


def configure(parser: argparse.ArgumentParser) -> None:
    add_manifests(parser)
    parser.add_argument(
        "-o", "--output", choices=["table", "json"], default="table", help="default: table"
    )


def run(options: argparse.Namespace) -> int:
    try:
        found = lint(read_texts(options.filename))
    except Unreadable as error:
        complain(str(error))
        return EXIT_USAGE
    if options.output == "json":
        print(json.dumps([one.as_dict() for one in found], indent=2))
    else:
        print("\n".join(map(printable, lines_of(found))))
    return EXIT_NO if any(one.severity is Severity.ERROR for one in found) else 0


def lines_of(found: list[Finding]) -> list[str]:
    lines = []
    for one in found:
        where = f"{one.file}:{one.line}" if one.file else "-"
        lines.append(f"{where}: {one.severity}: {one.object} {one.field}: {one.text} [{one.rule}]")
        lines.append(f"    fix: {one.fix}")
    errors = sum(one.severity is Severity.ERROR for one in found)
    lines.append(f"{errors} errors, {len(found) - errors} warnings")
    return lines
