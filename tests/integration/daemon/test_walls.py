"""The driver's walls on a simulated node: the daemon, its ledger, cgroups and the driver, with kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.processes.cgroups import unified_root
from nodeagent.adapters.processes.wall_places import cgroup_name
from tests.kit.node import Node, running, until
from tests.kit.workplace import workplace

ROOT = unified_root()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or ROOT is None,
        reason="THIS HOST HAS NO UNIFIED CGROUPS, OR WE ARE NOT ROOT: not tried",
    ),
]
GIB, MIB = 1 << 30, 1 << 20
SETTINGS = "[wall]\nrun_cgroups = true\n"
HOLD = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def node() -> Iterator[Node]:
    with workplace() as directory:
        (directory / "gpu").mkdir()
        (directory / "gpu" / "control").write_text("memory_limits=dmem\n")
        with running(directory, gpus="1xh100-80gb", settings=SETTINGS) as it:
            yield it


def made(node: Node) -> Path:
    """Where the daemon makes cgroups."""
    assert ROOT is not None
    return ROOT / cgroup_name(node.directory / "run")


def limits(node: Node, cgroup: Path) -> tuple[int, int | None] | None:
    """Limits that the driver has for a cgroup: guaranteed and most; None: there is no such
    cgroup."""
    gpu = node.info()["gpus"][0]["uuid"]
    request = {"do": "read", "gpu": gpu, "cgroups": [str(cgroup)]}
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent.adapters.nvml.walls_child"],
        input=json.dumps(request) + "\n",
        env=node.on_the_driver(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (reading,) = json.loads(done.stdout)["readings"]
    return None if reading is None else (reading["soft_bytes"], reading["hard_bytes"])


def walled(node: Node, name: str) -> dict[str, Any] | None:
    grant = node.grant(name)
    return grant if grant is not None and grant["devices"][0]["wall_bytes"] else None


def test_a_programs_wall_stands_before_it_runs_follows_resize_and_goes(node: Node) -> None:
    job = node.run("job", *HOLD, flags=("--gpumem", "8Gi", "--cores", "30"))
    grant = until("the job is behind its wall", lambda: walled(node, "job"))
    cgroup = made(node) / grant["grant"]
    until("it stands", lambda: limits(node, cgroup) == (8 * GIB, 8 * GIB + 64 * MIB))
    assert str(job.process.pid) in (cgroup / "cgroup.procs").read_text().split()
    node.cli("resize", "job", "--gpumem", "4Gi")
    until("it has moved", lambda: limits(node, cgroup) == (4 * GIB, 4 * GIB + 64 * MIB))
    doctor = {
        one["topic"]: one for one in json.loads(node.cli("doctor", "--json", check=False).stdout)
    }
    assert "the driver's, on 1 of 1 GPUs, around 1 grants" in doctor["walls"]["what"]
    job.kill()
    until("nothing of it is left", lambda: not made(node).exists())
    assert ROOT is not None
    assert limits(node, ROOT) == (0, None)


def test_a_daemon_that_was_killed_finds_its_walls_and_ends_those_whose_grants_have_ended(
    node: Node,
) -> None:
    stays = node.run("stays", *HOLD, flags=("--gpumem", "8Gi", "--cores", "30"))
    goes = node.run("goes", *HOLD, flags=("--gpumem", "4Gi", "--cores", "30"))
    stay = until("both are behind walls", lambda: walled(node, "stays"))
    until("both are behind walls", lambda: walled(node, "goes"))
    node.kill_daemon()
    goes.kill()
    node.start()
    until("the other's wall is gone", lambda: len(list(made(node).glob("*-*"))) == 1)
    cgroup = made(node) / stay["grant"]
    assert limits(node, cgroup) == (8 * GIB, 8 * GIB + 64 * MIB)
    assert limits(node, made(node)) == (8 * GIB, None), "what is around guarantees what is left"
    assert walled(node, "stays") is not None
    stays.kill()
    until("nothing of it is left", lambda: not made(node).exists())


def test_where_the_driver_has_no_limits_a_wall_that_must_stand_ends_the_start() -> None:
    settings = '[wall]\nenabled = "on"\nrun_cgroups = true\n'
    with (
        workplace() as directory,
        running(directory, gpus="1xh100-80gb", settings=settings) as node,
    ):
        done = node.cli("run", "--gpumem", "1Gi", "--", "true", check=False)
        assert done.returncode == 125
        assert "its driver has no memory limits (added in release 615)" in done.stderr
        until("the grant is given back", lambda: node.grants() == [])
        what = next(
            one
            for one in json.loads(node.cli("doctor", "--json", check=False).stdout)
            if one["topic"] == "walls"
        )
        assert what["level"] == "missing"


def test_a_driver_that_hangs_is_waited_for_and_the_program_starts(node: Node) -> None:
    (node.directory / "gpu" / "control").write_text("memory_limits=dmem\nnvml_hang=1\n")
    job = node.run("job", *HOLD, flags=("--gpumem", "8Gi", "--cores", "30"))
    until("it runs all the same", lambda: node.grant("job"), deadline_s=120)
    (node.directory / "gpu" / "control").write_text("memory_limits=dmem\n")
    job.kill()
    until("nothing of it is left", lambda: not made(node).exists(), deadline_s=120)
