"""`make test-faults`: every test of every case, and the kills beside them; what came out is written to build/faults.json, whatever it is.

A case has passed when all of its tests that this machine can run have, and at least one has run. It fails if a case
failed or could not run, or if a kill lost, doubled or overshot anything; the last lines say which, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.list.cases import CASES, Case
from tests.faults.long_forms import EARLIER, passed_earlier
from tests.kit.places import BUILD, REPO

HERE = "tests/faults"
OUT = BUILD / "faults.json"
KILLS_LOG = BUILD / "faults-kills.log"
HARM = ("lost", "doubled", "overshoot", "idle")
"""Counts of kills.py that are 0 when nothing was harmed."""
KILLS_S = 900
"""After the tests, for kills that hang; they take ten minutes, and most of those beside the tests."""


class Recorder:
    """Outcome of each test, without its parameters: the worst of all parameters."""

    WORST = ("failed", "passed", "skipped")

    def __init__(self, passed: Iterable[str] = ()) -> None:
        """`passed`: tests that have passed already, and are not run again."""
        self.outcomes: dict[str, set[str]] = {}
        self.reasons: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        """Failures by test, with parameters."""
        for test in passed:
            self.outcomes.setdefault(test.partition("[")[0], set()).add("passed")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.partition("[")[0]
            self.outcomes.setdefault(test, set()).add(report.outcome)
            if report.skipped and isinstance(report.longrepr, tuple):
                self.reasons[test] = str(report.longrepr[2])
            if report.outcome == "failed":
                self.failures[report.nodeid] = why(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "failed":
            self.failures[report.nodeid] = why(report)

    def of(self, test: str) -> str:
        found = self.outcomes.get(f"tests/{test}", set())
        return next((one for one in self.WORST if one in found), "not run")


def why(report: Any) -> str:
    """The line of the failure that says most: the exception, else the last one."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    lines = text.splitlines() or ["no reason was given"]
    return lines[0 if crash is not None else -1][:500]


def outcome_of(case: Case, recorder: Recorder) -> dict[str, Any]:
    tests = {test: recorder.of(test) for test in case.tests}
    outcomes = set(tests.values())
    outcome = "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else "not run"
    answer: dict[str, Any] = {"what": case.what, "outcome": outcome, "tests": tests}
    reasons = {t: recorder.reasons[f"tests/{t}"] for t in tests if f"tests/{t}" in recorder.reasons}
    failures = {
        test: said
        for test, said in recorder.failures.items()
        if test.partition("[")[0].removeprefix("tests/") in tests
    }
    more = {"reasons": reasons, "failures": failures}
    return answer | {key: value for key, value in more.items() if value}


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
        "failures": recorder.failures,
        "kills": killed,
        "seconds": round(time.monotonic() - began_s),
        "by_case": cases,
    }


def held(answer: dict[str, Any]) -> bool:
    killed = answer["kills"]
    none = all(killed.get(what) == 0 for what in HARM)
    red = ("failed", "not_run", "without_a_test", "failures")
    return none and not any(answer[what] for what in red)


def red_lines(answer: dict[str, Any]) -> list[str]:
    """Everything that is to be mended, one line each."""
    return lines_of_tests(answer) + other_lines(answer)


def lines_of_tests(answer: dict[str, Any]) -> list[str]:
    """One line for each test that failed, with its case."""
    lines = []
    told = set()
    for name in answer["failed"]:
        case = answer["by_case"][name]
        for test, said in case["failures"].items():
            told.add(test)
            lines.append(f"{name} ({case['what']}): {test}: {said}")
    return lines + [f"{t}: {said}" for t, said in answer["failures"].items() if t not in told]


def other_lines(answer: dict[str, Any]) -> list[str]:
    """One line for each case that did not run and each kind of kill that did harm: no second run of a test excuses those."""
    lines = []
    for name in answer["not_run"]:
        case = answer["by_case"][name]
        reasons = "; ".join(case.get("reasons", {}).values()) or "none of its tests was found"
        lines.append(f"{name} ({case['what']}): did not run: {reasons}")
    lines += [f"{name}: has no test" for name in answer["without_a_test"]]
    killed = answer["kills"]
    if "failed" in killed:
        lines.append(f"kills: {killed['failed']}")
    elif missing := [what for what in HARM if what not in killed]:
        lines.append(f"kills: not counted: {', '.join(missing)}")
    lines += [
        f"kills: {killed[what]} {what}: {killed.get('first', [])}"
        for what in HARM
        if killed.get(what)
    ]
    return lines


class Kills:
    """kills.py in a process of its own, begun beside the tests: it mostly waits, and they do. Made before them, it is none
    of theirs."""

    def __init__(self, seed: int, scale: float) -> None:
        self.seed = seed
        words = [sys.executable, "-m", "tests.faults.kills", "--seed", str(seed)]
        KILLS_LOG.parent.mkdir(exist_ok=True)
        with KILLS_LOG.open("w") as log:  # what those say that die is not for the terminal
            self.process = subprocess.Popen(
                [*words, "--scale", str(scale)],
                cwd=REPO,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def result(self) -> dict[str, Any]:
        """The JSON object that the process printed, or the reason why there is none."""
        try:
            out, _ = self.process.communicate(timeout=KILLS_S)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"failed": f"not done {KILLS_S} s after the tests (seed {self.seed})"}
        try:
            killed = json.loads(out.strip().splitlines()[-1])
            return killed if isinstance(killed, dict) else {"failed": f"it printed {killed!r}"}
        except (IndexError, ValueError):
            said = KILLS_LOG.read_text(errors="replace").strip().splitlines()
            last = f": {said[-1][:300]}" if said else ""
            code = self.process.returncode
            return {"failed": f"exit {code} without a result (seed {self.seed}){last}"}

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


def write(answer: dict[str, Any]) -> None:
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(answer, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scale", type=float, default=1.0, help="of the kills")
    parser.add_argument("--lanes", type=int, default=4, help="tests at once, see tests/lanes.py")
    parser.add_argument("--earlier", metavar="DIR", help="CI records; what passed there is not run")
    options, more = parser.parse_known_args()
    began_s = time.monotonic()
    if options.earlier:
        os.environ[EARLIER] = options.earlier
    record = Path(named) if (named := os.environ.get("SLUICE_CI_RECORD")) else None
    recorder = Recorder(passed_earlier())
    kills = Kills(options.seed, options.scale)
    try:
        status = tests(recorder, options.lanes, more)
        return conclude(status, recorder, kills, began_s, record)
    finally:
        kills.stop()


def tests(recorder: Recorder, lanes: int, more: list[str]) -> int:
    named = sorted({f"tests/{t}" for case in CASES for t in case.tests if HERE not in f"tests/{t}"})
    wanted = "not packages and not full and not cluster"
    options = ["-m", wanted, "-q", "-n", str(lanes), "-p", "tests.faults.long_forms"]
    options += ["--durations=15", "--durations-min=5"]
    return int(pytest.main([*options, *more, HERE, *named], plugins=[recorder]))


def conclude(
    status: int, recorder: Recorder, kills: Kills, began_s: float, record: Path | None
) -> int:
    """Write and print what came out. `record` is the directory of a CI run, see tests/ci/__main__.py."""
    write(summary(recorder, {"failed": "they were not waited for"}, began_s))
    answer = summary(recorder, kills.result(), began_s)
    write(answer)
    shown = {key: value for key, value in answer.items() if key not in ("by_case", "failures")}
    print(json.dumps(shown, indent=1))
    if record and (others := other_lines(answer)):
        (record / "faults.broken").write_text("\n".join(others) + "\n")
    lines = red_lines(answer)
    if status not in (0, pytest.ExitCode.TESTS_FAILED) or (status and not lines):
        lines.append(f"pytest ended with {status}: see above")
    for line in lines:
        print(f"FAILED {line}", file=sys.stderr)
    return 0 if held(answer) and not lines else 1


if __name__ == "__main__":
    sys.exit(main())
