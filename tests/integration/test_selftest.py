"""`sluice selftest interposer` on a simulated node: what the page on security prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.cli.selftest.attempts import WAYS
from nodeagent.cli.selftest.interposer import ANY, MATRIX, MOUNT, NEVER, Row, judge
from tests.kit.node import Node, running
from tests.kit.places import REPO
from tests.kit.workplace import workplace

GIB = 1 << 30


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        yield node


def run(node: Node, inject: str) -> dict[str, str]:
    done = node.cli("selftest", "interposer", "--inject", inject, "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["injection"] == inject
    return {row["way"]: row["verdict"] for row in answer["rows"]}


def documented(column: int) -> dict[str, str]:
    """way -> verdict, from the table of docs/security.md."""
    page = (REPO / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| B?[-\d]+ \| .*? \| `(\w+)` \| ([A-Z ]+) \| ([A-Z ]+) \|$", page, re.M)
    return {row[0]: row[column] for row in rows}


@pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")
@pytest.mark.root
def test_by_mount_everything_is_hooked_that_the_page_says(node: Node) -> None:
    got = run(node, "mount")
    assert got == documented(1)
    assert {row.way for row in MATRIX if row.hooked in (ANY, MOUNT)} == {
        way for way, verdict in got.items() if verdict == "HOOKED"
    }


def test_by_environment_it_does_not_pretend(node: Node) -> None:
    got = run(node, "environment")
    assert got == documented(2)
    assert got["cleared_environment"] == "NOT COVERED"


def test_every_row_has_a_way_and_every_way_a_row() -> None:
    used = {row.way for row in MATRIX}
    assert used | {"by_global_symbol"} == set(WAYS)


@pytest.mark.parametrize(
    ("hooked", "answer", "tampered", "by_mount", "verdict", "fine"),
    [
        (ANY, {"allocated_bytes": GIB, "note": ""}, 0, True, "HOOKED", True),
        (ANY, {"allocated_bytes": GIB + 1, "note": ""}, 0, True, "NOT COVERED", False),
        (ANY, {"allocated_bytes": GIB + 1, "note": ""}, 2, True, "DETECTED", False),
        (MOUNT, {"allocated_bytes": 2 * GIB, "note": ""}, 0, True, "NOT COVERED", False),
        (MOUNT, {"allocated_bytes": 2 * GIB, "note": ""}, 0, False, "NOT COVERED", True),
        (NEVER, {"allocated_bytes": 2 * GIB, "note": ""}, 0, True, "NOT COVERED", True),
        (NEVER, {"not_run": "no compiler"}, 0, True, "NOT RUN", True),
    ],
)
def test_a_verdict_is_what_was_measured(
    hooked: str,
    answer: dict[str, object],
    tampered: int,
    by_mount: bool,
    verdict: str,
    fine: bool,
) -> None:
    result = judge(Row("B0", "way", "what", hooked), answer, tampered, by_mount)
    assert (result.verdict, result.as_documented) == (verdict, fine)


def test_without_a_daemon_it_says_so(node: Node, tmp_path: Path) -> None:
    done = node.cli("selftest", "interposer", "--socket", tmp_path / "none", check=False)
    assert done.returncode != 0
    assert "selftest: " in done.stderr
