"""Compares the queue with Kueue's semantics and prints equal, differs or explained for each case.

    python -m tests.conformance.kueue [-q] [--only TEXT] [--logs DIR] [FILE...]

Without files: all of data/. It starts an API server and etcd of its own, and the controller. Exit
status 0 when nothing differs but what is known, 1 when something does, 2 when a file cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.conformance.kueue.cases import DATA, BadCase, Cases, read
from tests.conformance.kueue.comparing import compare
from tests.kit.conformance.case import Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kueue")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", default=None)
    parser.add_argument("-q", "--quiet", action="store_true", help="equal cases are only counted")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="where the logs are kept")
    options = parser.parse_args(arguments)
    try:
        cases = read(options.files or sorted(DATA.glob("*.yaml")))
    except (BadCase, OSError, KeyError, yaml.YAMLError) as error:
        print(f"cannot be used: {error}", file=sys.stderr)
        return 2
    chosen = Cases(
        cases.around,
        [one for one in cases.verdicts if options.only in one.name],
        [one for one in cases.runs if options.only in one.name],
    )
    counts: Counter[Verdict] = Counter()
    unknown = 0
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as directory,
        ControlPlane(Path(directory) / "plane") as plane,
    ):
        for case, outcome in compare(plane, options.logs or Path(directory), chosen):
            counts[outcome.verdict] += 1
            differs = outcome.verdict is Verdict.DIFFERS
            unknown += differs and not outcome.details[0].startswith("known: ")
            if outcome.verdict is not Verdict.AGREED or not options.quiet:
                print(f"{outcome.verdict:9}  {case.name}", flush=True)
            for detail in outcome.details:
                print(f"           {detail}", flush=True)
    total = f"{len(chosen.verdicts)} verdicts and {len(chosen.runs)} runs"
    print(f"{total}: " + ", ".join(f"{counts[one]} {one}" for one in Verdict))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
