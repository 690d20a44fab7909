"""`make test-faults`: every test of every case, then the kills; what came out is written to build/faults.json.

A case has passed when all of its tests that this machine can run have, and at least one has run. It fails if a case
failed or could not run, or if a kill lost, doubled or overshot anything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.faults.cases import CASES, Case
from tests.places import BUILD, REPO

HERE = "tests/faults"


class Recorder:
    """What became of each test, without its parameters: the worst of them."""

    WORST = ("failed", "passed", "skipped")

    def __init__(self) -> None:
        self.outcomes: dict[str, set[str]] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.partition("[")[0]
            self.outcomes.setdefault(test, set()).add(report.outcome)
            if report.skipped and isinstance(report.longrepr, tuple):
                self.reasons[test] = str(report.longrepr[2])

    def of(self, test: str) -> str:
        found = self.outcomes.get(f"tests/{test}", set())
        return next((one for one in self.WORST if one in found), "not run")


def outcome_of(case: Case, recorder: Recorder) -> dict[str, Any]:
    tests = {test: recorder.of(test) for test in case.tests}
    outcomes = set(tests.values())
    outcome = "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else "not run"
    answer: dict[str, Any] = {"what": case.what, "outcome": outcome, "tests": tests}
    reasons = {t: recorder.reasons[f"tests/{t}"] for t in tests if f"tests/{t}" in recorder.reasons}
    return answer | ({"reasons": reasons} if reasons else {})


def summary(recorder: Recorder, killed: dict[str, Any], began_s: float) -> dict[str, Any]:
    cases = {case.id: outcome_of(case, recorder) for case in CASES if case.tests}
    count = lambda outcome: sum(one["outcome"] == outcome for one in cases.values())  # noqa: E731
    return {
        "cases": len(CASES),
        "run": len(cases) - count("not run"),
        "passed": count("passed"),
        "failed": sorted(name for name, one in cases.items() if one["outcome"] == "failed"),
        "not_run": sorted(name for name, one in cases.items() if one["outcome"] == "not run"),
        "not_applicable": {c.id: c.not_applicable for c in CASES if c.not_applicable},
        "without_a_test": [c.id for c in CASES if not c.tests and not c.not_applicable],
        "kills": killed,
        "seconds": round(time.monotonic() - began_s),
        "by_case": cases,
    }


def held(answer: dict[str, Any]) -> bool:
    killed = answer["kills"]
    none = all(killed.get(what) == 0 for what in ("lost", "doubled", "overshoot"))
    return none and not (answer["failed"] or answer["not_run"] or answer["without_a_test"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scale", type=float, default=1.0, help="of the kills")
    options, more = parser.parse_known_args()
    began_s = time.monotonic()
    recorder = Recorder()
    named = sorted({f"tests/{t}" for case in CASES for t in case.tests if HERE not in f"tests/{t}"})
    wanted = "not packages and not full and not cluster"
    status = pytest.main(["-m", wanted, "-q", *more, HERE, *named], plugins=[recorder])
    words = [sys.executable, "-m", "tests.faults.kills", "--seed", str(options.seed)]
    done = subprocess.run(
        [*words, "--scale", str(options.scale)], cwd=REPO, stdout=subprocess.PIPE, text=True
    )
    lines = done.stdout.strip().splitlines()
    killed = json.loads(lines[-1]) if lines else {"failed": f"exit {done.returncode}"}
    answer = summary(recorder, killed, began_s)
    (BUILD / "faults.json").write_text(json.dumps(answer, indent=1) + "\n")
    shown = {key: value for key, value in answer.items() if key not in ("by_case",)}
    print(json.dumps(shown, indent=1))
    return 0 if held(answer) and status in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main())
