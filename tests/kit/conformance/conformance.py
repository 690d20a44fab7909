"""Runs recorded decisions of Kueue's scheduler through our engine and says where the two agree.

    python -m tests.kit.conformance.conformance [-v] FILE...

Each file is an object with `cases`; the fields of a case say which kind it is. Files that end in
.gz or .xz are unpacked. Exit status 0 when nothing differs, 1 when something does, 2 when a file
cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from lzma import LZMAError
from pathlib import Path

from queuecontroller.kueueapi.manifests import ManifestError
from tests.kit.conformance.case import Case, Outcome, Verdict
from tests.kit.conformance.cycle_cases import run_cycle_case
from tests.kit.conformance.flavor_cases import run_flavor_case
from tests.kit.conformance.preemption_cases import run_preemption_case
from tests.kit.conformance.recorded import open_text

Runner = Callable[[Case], Outcome]


def runner_for(case: Case) -> Runner | None:
    if "podSets" in case:
        return run_flavor_case
    if "incoming" in case:
        return run_preemption_case
    if "workloads" in case:
        return run_cycle_case
    return None


def run_case(case: Case) -> Outcome:
    runner = runner_for(case)
    if runner is None:
        return Outcome(Verdict.DIFFERS, (f"unknown kind of case: {sorted(case)}",))
    try:
        return runner(case)
    except ManifestError as error:
        return Outcome(Verdict.DIFFERS, ("cannot be read", *map(str, error.problems)))


def cases_of(path: Path) -> list[Case]:
    """Read the cases of a file. Raises OSError, ValueError."""
    try:
        with open_text(path) as file:
            content = json.load(file)
    except (EOFError, LZMAError) as error:
        raise ValueError(f"{path}: {error}") from error
    cases = content.get("cases") if isinstance(content, Mapping) else content
    if not isinstance(cases, list):
        raise ValueError(f"{path}: no list of cases")
    return cases


def run_file(path: Path) -> Iterator[tuple[str, Outcome]]:
    for case in cases_of(path):
        yield str(case.get("name", "unnamed")), run_case(case)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.conformance.conformance")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="agreed cases are only counted")
    options = parser.parse_args(arguments)
    totals: Counter[Verdict] = Counter()
    for path in options.files:
        counts: Counter[Verdict] = Counter()
        try:
            for name, outcome in run_file(path):
                counts[outcome.verdict] += 1
                if outcome.verdict is not Verdict.AGREED or not options.quiet:
                    print(f"{outcome.verdict:8}  {path.name}: {name}")
                for detail in outcome.details:
                    print(f"          {detail}")
        except (OSError, ValueError, KeyError) as error:
            print(f"{path}: cannot be used: {error!r}", file=sys.stderr)
            return 2
        print(f"{path.name}: {_summary(counts)}")
        totals += counts
    print(f"total: {_summary(totals)}")
    return 1 if totals[Verdict.DIFFERS] else 0


def _summary(counts: Mapping[Verdict, int]) -> str:
    total = sum(counts.values())
    parts = ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in Verdict)
    return f"{parts}, of {total}"


if __name__ == "__main__":
    sys.exit(main())
