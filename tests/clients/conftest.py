"""The environment of the clients, the node they run on, and their table."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import table
from tests.kit.node import Node, running
from tests.kit.places import REPO


@pytest.fixture(scope="session")
def place() -> Path:
    """The virtual environment of the clients; the first time it is made, which takes minutes, with cargo there half an hour."""
    done = subprocess.run(
        [REPO / "packaging" / "fetch" / "clients-tool.sh"],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("clients"), gpus="2xh100-80gb") as it:
        yield it


def pytest_sessionfinish(session: pytest.Session) -> None:
    told = getattr(session.config, "workeroutput", None)
    if told is not None:  # a worker: who started it prints the table
        told["clients"] = table.to_plain()
        return
    if table.ROWS and session.config.option.markexpr == "":  # all of them, not the light ones alone
        table.write()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    table.from_plain(node.workeroutput.get("clients", []))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if table.ROWS:
        terminalreporter.section("programs of other people")
        for line in table.lines():
            terminalreporter.write_line(line)
