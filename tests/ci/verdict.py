"""The decision of a CI run: from the results of its suites and the lists of earlier runs, without I/O.

A test that fails and passes when it is run again alone is flaky. Up to `MAX_FLAKY` of those in one run are listed and
forgiven; with more than that something is wrong with the machine or the change, and all of them count as failed. Only
the failure of a test is ever forgiven: lint, a collection error, a crashed worker or a suite that ended by itself is red.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_FLAKY = 5
"""Over all suites of a run."""
MAX_RUNS = 20
"""Runs kept in build/flaky.json."""
SLOWEST = 5
"""Files listed for each suite."""
ORDER = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
"""Order of outcomes in pytest's last line."""
WIDTH = 100


@dataclass(frozen=True)
class Failure:
    """The first failure of a test: its message on one line, and the end of pytest's own report."""

    message: str
    report: str = ""


@dataclass(frozen=True)
class Suite:
    """One suite after its first run and, where tests had failed, its second."""

    name: str
    status: int
    """Exit status of `make NAME`."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """User and system time of everything the suite started and waited for."""
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """Test to its outcome in the first run; the worst one, where it has several."""
    durations_s: Mapping[str, float] = field(default_factory=dict)
    """Test to the wall time of its set-up, call and tear-down in the first run."""
    failures: Mapping[str, Failure] = field(default_factory=dict)
    broken: Sequence[str] = ()
    """Faults in either run that are no failure of a test, one line each."""
    again: Mapping[str, str] = field(default_factory=dict)
    """Test to its outcome in the second run."""

    @property
    def flaky(self) -> list[str]:
        return [test for test in self.failures if self.again.get(test) == "passed"]

    @property
    def failed(self) -> list[str]:
        return [test for test in self.failures if self.again.get(test) != "passed"]


@dataclass(frozen=True)
class Verdict:
    status: int
    lines: list[str]
    """The end of the output; the last one has the form of pytest's."""
    runs: list[dict[str, Any]]
    """Runs to be stored in build/flaky.json, this one last."""


def unexplained(status: int, failures: Mapping[str, Failure], broken: Sequence[str]) -> list[str]:
    """One line for a suite that failed without a word."""
    return (
        [f"ended with {status} and named no reason"]
        if status and not failures and not broken
        else []
    )


def decide(
    suites: Sequence[Suite], earlier: Sequence[Mapping[str, Any]], at: str, wall_s: float
) -> Verdict:
    """Judge a run. `earlier` is the content of build/flaky.json, `at` the time of this run, `wall_s` how long it took: suites
    run beside each other."""
    flaky = [(suite, test) for suite in suites for test in suite.flaky]
    forgiven = len(flaky) <= MAX_FLAKY
    lines = [*table(suites, wall_s), *slowest(suites), *failed_lines(suites)]
    if flaky:
        lines += ["", f"flaky: {len(flaky)} failed once and passed alone (build/flaky.json)"]
        lines += [
            f"FLAKY {suite.name}: {test}: {suite.failures[test].message}" for suite, test in flaky
        ]
    if not forgiven:
        lines.append(f"RED: {len(flaky)} flaky tests in one run; at most {MAX_FLAKY} are forgiven")
    lines += repeated({test for _, test in flaky}, earlier)
    counts = totals(suites, forgiven)
    red = not forgiven or any(suite.failed or broken_of(suite) for suite in suites)
    lines.append(last_line(counts, wall_s))
    run = {
        "at": at,
        "flaky": [
            {
                "suite": suite.name,
                "test": test,
                "message": suite.failures[test].message,
                "report": suite.failures[test].report,
            }
            for suite, test in flaky
        ],
    }
    return Verdict(
        status=int(red),
        lines=lines,
        runs=[*map(dict, earlier), run][-MAX_RUNS:],
    )


def table(suites: Sequence[Suite], wall_s: float) -> list[str]:
    """Wall and CPU time of each suite and of all."""
    rows = [(suite.name, suite.wall_s, suite.cpu_s, len(suite.outcomes)) for suite in suites]
    rows.append(("all", wall_s, sum(r[2] for r in rows), sum(r[3] for r in rows)))
    head = f"{'suite':14} {'wall':>8} {'CPU':>8} {'tests':>7}"
    return ["", head, *(f"{n:14} {w:6.0f} s {c:6.0f} s {tests:7}" for n, w, c, tests in rows)]


def slowest(suites: Sequence[Suite]) -> list[str]:
    """The files that took longest, by suite: where the next minute is to be saved. Lanes overlap, so that a
    suite's files may add up to more than its wall time."""
    lines = []
    for suite in suites:
        spent: dict[str, float] = {}
        for test, seconds in suite.durations_s.items():
            file = test.partition("::")[0]
            spent[file] = spent.get(file, 0.0) + seconds
        longest = sorted(spent.items(), key=lambda one: -one[1])[:SLOWEST]
        lines += [f"{suite.name:14} {took:6.0f} s  {file}" for file, took in longest]
    return ["", "slowest files, tests added up", *lines] if lines else []


def failed_lines(suites: Sequence[Suite]) -> list[str]:
    lines = []
    for suite in suites:
        for test in suite.failed:
            second = suite.again.get(test, "not run")
            how = "again" if second in ("failed", "error") else f"once, the second time {second}"
            lines.append(f"FAILED {suite.name}: {test} ({how}): {suite.failures[test].message}")
        lines += [f"BROKEN {suite.name}: {line}" for line in broken_of(suite)]
    return ["", *lines] if lines else []


def broken_of(suite: Suite) -> list[str]:
    return [*suite.broken, *unexplained(suite.status, suite.failures, suite.broken)]


def repeated(tests: Iterable[str], earlier: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flaky tests of this run that stand in an earlier run's list, too."""
    before: dict[str, list[str]] = {}
    for run in earlier:
        for one in run["flaky"]:
            before.setdefault(one["test"], []).append(run["at"])
    found = sorted(set(tests) & set(before))
    if not found:
        return []
    bar = "!" * WIDTH
    lines = [f"DEFECT {test}: also flaky in the run of {', '.join(before[test])}" for test in found]
    return [
        "",
        bar,
        "Flaky in more than one run: a defect of the test or the product, to be mended.",
        *lines,
        bar,
    ]


def totals(suites: Sequence[Suite], forgiven: bool) -> Counter[str]:
    """Tests by outcome over all suites; a forgiven test counts as passed, everything else that is red as an error."""
    counts: Counter[str] = Counter()
    for suite in suites:
        pardoned = set(suite.flaky) if forgiven else set()
        counts.update(
            "passed" if test in pardoned else word for test, word in suite.outcomes.items()
        )
        counts["error"] += len(broken_of(suite))
    return counts


def last_line(counts: Mapping[str, int], wall_s: float) -> str:
    parts = [f"{counts[word]} {word}" for word in ORDER if counts.get(word)]
    if counts.get("error", 0) > 1:
        parts[-1] += "s"
    middle = f" {', '.join(parts) or 'no tests ran'} in {wall_s:.2f}s "
    return middle.center(WIDTH, "=")
