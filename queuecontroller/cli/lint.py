"""`sluice-queue lint -f DIR|FILE …`: what is wrong with manifests taken together."""

from __future__ import annotations

import argparse
import json
import sys

from queuecontroller.cli.main import EXIT_NO, EXIT_USAGE
from queuecontroller.cli.simulate import texts_of
from queuecontroller.lint import Finding, Severity, lint


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
        "-o", "--output", choices=["table", "json"], default="table", help="default: table"
    )


def run(options: argparse.Namespace) -> int:
    try:
        found = lint(texts_of(options.filename))
    except (OSError, UnicodeDecodeError) as error:
        print(f"sluice-queue: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.output == "json":
        print(json.dumps([one.as_dict() for one in found], indent=2))
    else:
        print("\n".join(lines_of(found)))
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
