"""Habits of programs get the same answers in a grant as straight on the driver, and leave the charge as it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.odd.habits import HABITS
from tests.integration.odd.programs import MIB, started
from tests.kit.node import Node, running

HELPERS = {"on", "used", "stream", "alloc", "create", "thread"}
NAMES = [name for name in re.findall(r"^def (\w+)", HABITS, re.MULTILINE) if name not in HELPERS]
CLASS = 2 * MIB
"""A size class that a program used for the first time keeps one page."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("habits"), gpus="2xh100-80gb") as started:
        yield started


@pytest.fixture(scope="module")
def bare(node: Node) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", HABITS],
        env=node.on_the_driver(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.fixture(scope="module")
def granted(node: Node) -> dict[str, Any]:
    flags = ("--gpumem", "8Gi", "--gpus", "2")
    done = started(node, sys.executable, "-c", HABITS, flags=flags)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_a_habit_has_the_same_answers_and_leaves_the_charge_as_it_was(
    bare: dict[str, Any], granted: dict[str, Any], name: str
) -> None:
    assert granted[name][0] == bare[name][0]
    assert all(abs(change) <= CLASS for change in granted[name][1]), granted[name][1]
