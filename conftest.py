"""Rules of every test: what a run leaves behind fails it by name, and no property has a deadline.

The examples of properties are the same in every run, so that a change is judged by what it
changes, and 50 where a test says no number; `make test-full` looks for new ones
(`--hypothesis-profile explore`), twice as many.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.ci import recorder
from tests.kit import leftovers
from tests.kit.node import NodeError, until

SLOW_MACHINE = (HealthCheck.too_slow,)
settings.register_profile(
    "same", deadline=None, suppress_health_check=SLOW_MACHINE, derandomize=True, max_examples=50
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=SLOW_MACHINE, print_blob=True
)
settings.load_profile("same")

ENDING_S = 20
"""Children of a daemon that was killed see it by themselves, on a busy machine not at once."""

_left: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-times",
        metavar="N",
        nargs="?",
        type=int,
        const=30,
        help="CPU seconds of each test: the N dearest, all in build/cpu-times.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    leftovers.watch()
    if (most := config.getoption("--cpu-times")) is not None:
        from tests.cpu_times import CpuTimes

        config.pluginmanager.register(CpuTimes(most))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    from tests import lanes  # with pytest-xdist only

    return lanes.Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests import lanes

        lanes.arrange(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests import lanes

        lanes.give_way(item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has ended: what it left is part of this run."""
    _left.extend(getattr(node, "workeroutput", {}).get("left", []))


@pytest.hookimpl(trylast=True)  # after what Ctrl-C has left to be torn down
def pytest_sessionfinish(session: pytest.Session) -> None:
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)
    temporary = str(base) if base else ""
    with suppress(NodeError):
        until("the run has left nothing", lambda: not leftovers.left(temporary), ENDING_S)
    _left.extend(leftovers.left(temporary))
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left"] = _left
    session.config.stash.setdefault(recorder.BROKEN, []).extend(
        f"left behind: {it}" for it in _left
    )
    if _left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _left:
        terminalreporter.section("left behind by the tests")
        for line in _left:
            terminalreporter.write_line(line, red=True)
