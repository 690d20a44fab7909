"""`pytest --cpu-times[=N]`: CPU seconds of each test with what it started, and the N dearest tests and files.

Wall time says who waits, and on a busy machine nothing at all; this says who works. Children count once they are reaped: a
daemon that several tests share is on the account of the one at whose end it was stopped.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.places import BUILD

NAME = "cpu_s"


def spent_s() -> float:
    """User and system time of this process and of all its children that were reaped."""
    return sum(os.times()[:4])


class CpuTimes:
    """In a worker it notes, in the first process it adds up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        item.stash[SPENT] = spent_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        report: Any = yield
        if call.when == "teardown":
            report.user_properties.append((NAME, spent_s() - item.stash[SPENT]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == NAME:
                self._of_tests[report.nodeid] += value  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        of_files: Counter[str] = Counter()
        for test, value in self._of_tests.items():
            of_files[test.partition("::")[0]] += value  # type: ignore[assignment]
        BUILD.mkdir(exist_ok=True)
        (BUILD / "cpu-times.json").write_text(json.dumps(dict(self._of_tests.most_common())))
        total_s = sum(of_files.values())
        terminalreporter.section(f"{total_s:.0f} s of CPU; all in build/cpu-times.json")
        for what in (self._of_tests, of_files):
            for name, value in what.most_common(self._most):
                terminalreporter.write_line(f"{value:7.2f} s  {name}")
            terminalreporter.write_line("")


SPENT = pytest.StashKey[float]()
