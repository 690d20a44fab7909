"""`sluice selftest interposer` on a simulated node: what the page on security prints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.processes.cgroups import unified_root
from nodeagent.cli.selftest.attempts import WAYS
from nodeagent.cli.selftest.interposer import ANY, MATRIX, MOUNT, NEVER, Row, Seen, judge
from tests.kit.node import Node, running
from tests.kit.places import REPO
from tests.kit.workplace import workplace

GIB = 1 << 30


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        yield node


@pytest.fixture(scope="module")
def walled() -> Iterator[Node]:
    """A driver that has memory limits by cgroup, and programs in cgroups of their own."""
    settings = "[wall]\nrun_cgroups = true\n"
    with workplace() as directory:
        (directory / "gpu").mkdir()
        (directory / "gpu" / "control").write_text("memory_limits=dmem\n")
        with running(directory, gpus="1xh100-80gb", settings=settings) as node:
            yield node


needs_walls = pytest.mark.skipif(
    os.geteuid() != 0 or unified_root() is None,
    reason="THIS HOST HAS NO UNIFIED CGROUPS, OR WE ARE NOT ROOT: the driver's wall is not tried",
)


def run(node: Node, inject: str, driver: bool = False) -> dict[str, str]:
    done = node.cli("selftest", "interposer", "--inject", inject, "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["injection"] == inject
    assert answer["walls"] == {"interposer": True, "driver": driver, "MIG": False}
    return {row["way"]: row["verdict"] for row in answer["rows"]}


def documented(column: int) -> dict[str, str]:
    """way -> verdict, from the table of docs/security.md."""
    page = (REPO / "docs" / "security.md").read_text()
    verdict = r"([A-Z ]+) \|"
    row = rf"^\| B?[-\d]+ \| .*? \| `(\w+)` \| {verdict} {verdict} {verdict} {verdict}$"
    rows = re.findall(row, page, re.M)
    return {row[0]: row[column] for row in rows}


@pytest.mark.faults
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


@needs_walls
@pytest.mark.root
def test_the_drivers_wall_stops_what_passes_the_interposer_but_managed_memory(
    walled: Node,
) -> None:
    got = run(walled, "mount", driver=True)
    assert got == documented(3)
    stopped = {way for way, verdict in got.items() if verdict in ("HOOKED", "WALLED")}
    assert stopped >= {row.way for row in MATRIX if row.hooked in (ANY, MOUNT)}
    assert {way for way, verdict in got.items() if verdict == "WALLED"} == {
        "symbol_walk",
        "own_copy",
        "forged_counters",
    }
    assert got["own_copy_managed"] == "NOT COVERED"


@pytest.mark.faults
@needs_walls
@pytest.mark.root
def test_by_environment_the_drivers_wall_is_the_one_that_holds(walled: Node) -> None:
    got = run(walled, "environment", driver=True)
    assert got == documented(4)
    assert got["cleared_environment"] == "WALLED"


def test_every_row_has_a_way_and_every_way_a_row() -> None:
    used = {row.way for row in MATRIX}
    assert used | {"by_global_symbol"} == set(WAYS)


WALL = GIB + (64 << 20)


@pytest.mark.parametrize(
    ("hooked", "answer", "seen", "by_mount", "verdict", "fine"),
    [
        (ANY, {"allocated_bytes": GIB, "note": ""}, Seen(), True, "HOOKED", True),
        (ANY, {"allocated_bytes": GIB + 1, "note": ""}, Seen(), True, "NOT COVERED", False),
        (ANY, {"allocated_bytes": GIB + 1, "note": ""}, Seen(2), True, "DETECTED", False),
        (MOUNT, {"allocated_bytes": 2 * GIB, "note": ""}, Seen(), True, "NOT COVERED", False),
        (MOUNT, {"allocated_bytes": 2 * GIB, "note": ""}, Seen(), False, "NOT COVERED", True),
        (NEVER, {"allocated_bytes": 2 * GIB, "note": ""}, Seen(), True, "NOT COVERED", True),
        (NEVER, {"not_run": "no compiler"}, Seen(), True, "NOT RUN", True),
        (ANY, {"allocated_bytes": GIB, "note": ""}, Seen(0, 1, WALL), True, "HOOKED", True),
        (NEVER, {"allocated_bytes": GIB // 2, "note": ""}, Seen(0, 0, WALL), True, "WALLED", True),
        (ANY, {"allocated_bytes": GIB // 2, "note": ""}, Seen(0, 0, WALL), True, "WALLED", False),
        (
            NEVER,
            {"allocated_bytes": WALL + 1, "note": ""},
            Seen(0, 0, WALL),
            True,
            "NOT COVERED",
            False,
        ),
    ],
)
def test_a_verdict_is_what_was_measured(
    hooked: str,
    answer: dict[str, object],
    seen: Seen,
    by_mount: bool,
    verdict: str,
    fine: bool,
) -> None:
    result = judge(Row("B0", "way", "what", hooked), answer, seen, by_mount)
    assert (result.verdict, result.as_documented) == (verdict, fine)


def test_what_the_driver_does_not_count_it_need_not_stop() -> None:
    row = Row("B0", "way", "what", NEVER, counted=False)
    result = judge(row, {"allocated_bytes": 2 * WALL, "note": ""}, Seen(0, 0, WALL), True)
    assert (result.verdict, result.as_documented) == ("NOT COVERED", True)


def test_without_a_daemon_it_says_so(node: Node, tmp_path: Path) -> None:
    done = node.cli("selftest", "interposer", "--socket", tmp_path / "none", check=False)
    assert done.returncode != 0
    assert "selftest: " in done.stderr
