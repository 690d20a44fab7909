"""A plugin of pytest that writes down what became of each test, for the CI run that started pytest.

It writes one JSON file for each pytest process into the directory that `SLUICE_CI_RECORD` names, and nothing without it.
The file is there from the beginning with `finished` false, so that a process that was killed is not taken for one that
passed. Workers of xdist report to the first process, which writes for all. tests/ci/__main__.py reads the files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = "SLUICE_CI_RECORD"
BROKEN = pytest.StashKey[list[str]]()
"""Lines in the pytest configuration that other plugins add about faults that are no failure of a
test."""
CRASHED = "???"
"""The phase that xdist names in its report about the test during which a worker ended."""
ENDINGS = {2: "interrupted", 3: "internal error of pytest", 4: "wrong usage of pytest"}
WORST = ("error", "failed", "xpassed", "passed", "xfailed", "skipped", "")
MAX_CHARACTERS, MAX_LINES = 300, 40


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    # Taken out of the environment: a pytest that a test starts is not one of this suite's.
    directory = os.environ.pop(DIRECTORY, None)
    os.environ.pop("PYTEST_PLUGINS", None)
    if directory is not None:
        config.pluginmanager.register(Recorder(Path(directory)), "sluice-ci-recorder")


class Recorder:
    def __init__(self, directory: Path) -> None:
        self._to = directory / f"pytest-{os.getpid()}.json"
        self._outcomes: dict[str, str] = {}
        self._durations_s: dict[str, float] = {}
        self._failures: dict[str, dict[str, str]] = {}
        self._broken: list[str] = []
        self._write(finished=False)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(
                f"{report.nodeid or 'collection'}: not collected: {message(report)}"
            )

    def pytest_internalerror(self, excrepr: object) -> None:
        self._broken.append(f"internal error of pytest: {(str(excrepr).splitlines() or [''])[-1]}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == CRASHED:
            self._broken.append(f"{report.nodeid}: {message(report)}")
            return
        spent = self._durations_s.get(report.nodeid, 0.0) + report.duration
        self._durations_s[report.nodeid] = round(spent, 3)
        if report.failed:
            word = "failed" if report.when == "call" else "error"
            shown = "\n".join(report.longreprtext.splitlines()[-MAX_LINES:])
            self._failures.setdefault(report.nodeid, {"message": message(report), "report": shown})
        elif hasattr(report, "wasxfail"):
            word = "xfailed" if report.skipped else "xpassed"
        elif report.skipped:
            word = "skipped"
        else:
            word = "passed" if report.when == "call" else ""
        before = self._outcomes.get(report.nodeid, "")
        self._outcomes[report.nodeid] = min(before, word, key=WORST.index)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._broken.append(f"worker {node.gateway.id}: {error}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Written after every other plugin has had its say about the exit status."""
        try:
            return (yield)
        finally:
            status = int(session.exitstatus)
            self._broken += session.config.stash.get(BROKEN, [])
            if status in ENDINGS:
                self._broken.append(ENDINGS[status])
            elif status == 1 and not self._failures and not self._broken:
                self._broken.append("pytest ended with 1 though no test failed")
            self._write(finished=True)

    def _write(self, finished: bool) -> None:
        record = {
            "finished": finished,
            "python": sys.executable,
            "environment": {
                k: v for k, v in os.environ.items() if k == "PATH" or k.startswith("SLUICE_")
            },
            "broken": self._broken,
            "failures": self._failures,
            "outcomes": dict(sorted(self._outcomes.items())),
            "durations_s": dict(sorted(self._durations_s.items())),
        }
        self._to.parent.mkdir(parents=True, exist_ok=True)
        beside = self._to.with_suffix(".new")
        beside.write_text(json.dumps(record, indent=1) + "\n")
        beside.replace(self._to)


def message(report: Any) -> str:
    """The line that says most: the exception's first, else the last one of the report."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    lines = text.splitlines() or ["no reason was given"]
    return lines[0 if crash is not None else -1][:MAX_CHARACTERS]
