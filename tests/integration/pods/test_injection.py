"""Injection by mount, for real: a mount namespace per program, our libraries over the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.pods.program import TRY
from tests.kit.node import Node, running, until
from tests.kit.places import SHIM, SIM, SLUICE
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root"),
]
GIB = 2**30


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with workplace() as directory, running(directory, gpus="1xh100-80gb") as node:
        yield node


RUN = (SLUICE, "run", "--gpumem", "2Gi", "--policy", "elastic")


def run(environment: Mapping[str, str], *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


def attempt(
    node: Node, library: str | Path, *wrap: str, flags: tuple[str, ...] = ()
) -> dict[str, object]:
    program = (*wrap, sys.executable, "-c", TRY, library)
    done = run(node.environment(), *RUN, *flags, "--", *program)
    assert done.returncode == 0, done.stderr
    got: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return got


CAPPED = {"init": 0, "total": 2 * GIB, "big": 2}


@pytest.mark.parametrize(
    "library", ["libcuda.so.1", SIM / "libcuda.so.1"], ids=["by name", "by path"]
)
def test_the_driver_is_ours_however_it_is_asked_for(node: Node, library: str | Path) -> None:
    assert attempt(node, library) == CAPPED


def test_an_empty_environment_changes_nothing(node: Node) -> None:
    sim = [f"SLUICE_SIM_DIR={node.directory}/gpu", f"SLUICE_SIM_GPUS={node.gpus}"]
    assert attempt(node, SIM / "libcuda.so.1", "env", "-i", *sim) == CAPPED


def test_a_region_of_ones_own_making_is_not_believed(node: Node, tmp_path: Path) -> None:
    assert attempt(node, SIM / "libcuda.so.1", "env", f"SLUICE_GRANT_DIR={tmp_path}") == CAPPED


def test_a_copy_of_the_driver_elsewhere_on_the_path_is_covered_too(
    node: Node, tmp_path: Path
) -> None:
    real = (SIM / "libcuda.so.1").read_bytes()
    (tmp_path / "libcuda.so.550.1").write_bytes(real)
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.550.1")
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    before = os.environ.get("LD_LIBRARY_PATH")
    environment = node.environment(LD_LIBRARY_PATH=str(tmp_path))
    for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.550.1"):
        done = run(environment, *RUN, "--", sys.executable, "-c", TRY, tmp_path / name)
        assert json.loads(done.stdout.splitlines()[-1]) == CAPPED, (name, done.stderr)
    assert os.environ.get("LD_LIBRARY_PATH") == before


def test_shim_and_preload_together_charge_once(node: Node) -> None:
    words = ("--launches", "100", "--hold", str(GIB), "--idle", "30")
    job = node.run_tenant("once", *words, flags=("--gpumem", "4Gi"))
    device = until(
        "it has launched",
        lambda: (
            (g := node.grant("once"))
            and g["devices"][0]["launches_total"] >= 100
            and g["devices"][0]
        ),
    )
    assert device["launches_total"] == 100
    assert GIB < device["memory_used_bytes"] < 2 * GIB, "the block once, and a context"
    job.kill()


def test_nothing_is_left_mounted_and_the_limits_cannot_be_written(node: Node) -> None:
    listing = "import os; print(sorted(os.listdir('/run/sluice/grant'))); open('/run/sluice/grant/policy.shm', 'r+b')"
    done = run(node.environment(), *RUN, "--", sys.executable, "-c", listing)
    assert "policy.shm" in done.stdout
    assert "Read-only file system" in done.stderr
    mounted = Path("/proc/self/mountinfo").read_text()
    assert "/run/sluice/grant" not in mounted
    assert "/run/sluice/driver" not in mounted
    assert "libcuda" not in mounted


def host_mounts_come_in() -> bool:
    root = next(
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " / / " in line
    )
    return " shared:" in root


def test_a_grant_inside_of_a_grant_works_or_says_why_not(node: Node) -> None:
    inner = [str(SLUICE), "run", "--gpumem", "1Gi", "--policy", "elastic", "--"]
    program = [sys.executable, "-c", TRY, "libcuda.so.1"]
    nested = [*inner, "env", f"SLUICE_SOCKET={node.socket}", *inner, *program]
    done = run(node.environment(), *nested)
    if host_mounts_come_in():
        assert json.loads(done.stdout.splitlines()[-1]) == {"init": 0, "total": GIB, "big": 2}
    else:
        assert done.returncode == 125
        assert "a grant inside a grant" in done.stderr


def test_by_environment_is_still_there_and_says_so(node: Node) -> None:
    assert attempt(node, "libcuda.so.1", flags=("--inject", "environment")) == CAPPED
    outside = attempt(node, SIM / "libcuda.so.1", flags=("--inject", "environment"))
    assert outside["big"] == 0, "by path the driver itself is reached: what doctor warns of"


def test_doctor_says_which_and_what_it_means(node: Node) -> None:
    found = {f["topic"]: f for f in json.loads(node.cli("doctor", "--json", check=False).stdout)}
    assert found["injection"]["level"] == "ok"
    assert "by mount" in found["injection"]["what"]
    assert SHIM.is_dir()
