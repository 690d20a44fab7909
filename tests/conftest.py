"""For every test: what the run leaves on the machine is named at its end, and fails it."""

from __future__ import annotations

from typing import Any

import pytest

from tests import leftovers

_left: list[str] = []


def pytest_configure() -> None:
    leftovers.watch()


def pytest_sessionfinish(session: pytest.Session) -> None:
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)
    _left.extend(leftovers.left(str(base) if base else ""))
    if _left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _left:
        terminalreporter.section("left behind by the tests")
        for line in _left:
            terminalreporter.write_line(line, red=True)
