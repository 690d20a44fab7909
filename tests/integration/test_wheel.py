"""The wheel that packages are made of: built by meson-python, complete, and without anything of the test bench."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.places import BUILD, REPO

NEEDED = [
    "nodeagent/native/shim/libcuda.so.1",
    "nodeagent/native/shim/libnvidia-ml.so.1",
    "nodeagent/native/preload/libsluice.so",
    "nodeagent/native/libsluice_region.so",
    "nodeagent/native/proto/sluice.binpb",
    "nodeagent/cli/main.py",
    "queuecontroller/__init__.py",
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            f"-Cbuild-dir={BUILD / 'wheel'}",  # kept: what is as it was is not compiled anew
            "-w",
            out,
            REPO,
        ],
        check=True,
        timeout=280,
        env={**os.environ, "PATH": tools},
    )
    return next(out.glob("sluice-*.whl"))


def test_it_holds_what_a_node_needs_and_nothing_of_the_simulator(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in NEEDED if name not in names] == []
    assert [name for name in names if "sim" in name.split("/") or name.startswith("tests/")] == []


def test_it_runs_from_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            tmp_path / "site",
            wheel,
        ],
        check=True,
        timeout=120,
    )
    answer = subprocess.run(
        [sys.executable, "-m", "nodeagent.cli", "version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.stdout.strip() == f"sluice {(REPO / 'VERSION').read_text().strip()}", (
        answer.stderr
    )
    where = subprocess.run(
        [sys.executable, "-c", "from nodeagent.native import locate; print(locate().shim_dir)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert where.stdout.strip() == str(tmp_path / "site" / "nodeagent" / "native" / "shim")
