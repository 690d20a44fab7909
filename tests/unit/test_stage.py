"""Builds put their files in place by a rename, also when several run at a time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.places import REPO

STAGE = REPO / "packaging" / "development" / "stage.sh"
FILES = (
    "interpose/shim/libcuda.so.1",
    "interpose/shim/libnvidia-ml.so.1",
    "interpose/preload/libsluice.so",
    "interpose/libsluice_region.so",
    "interpose/hook/sluice-container-hook",
    "nodeagent/bpf/watch.bpf.o",
    "proto/sluice.binpb",
    "proto/kubelet.binpb",
    "proto/queue.binpb",
)
ROUNDS, AT_A_TIME = 3, 4


@pytest.fixture
def built(tmp_path: Path) -> Path:
    meson = tmp_path / "me son"
    for name in FILES:
        (meson / name).parent.mkdir(parents=True, exist_ok=True)
    (meson / "simgpu").mkdir()
    for library in ("libcuda.so", "libnvidia-ml.so"):
        (meson / "simgpu" / f"{library}.1").symlink_to(f"{library}.580.1")
    return meson


def write(meson: Path, text: str) -> None:
    for name in (*FILES, "simgpu/libcuda.so.580.1", "simgpu/libnvidia-ml.so.580.1"):
        (meson / name).write_text(text)


def staged(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_several_at_a_time_do_not_disturb_each_other(built: Path, tmp_path: Path) -> None:
    dest = tmp_path / "build"
    for number in range(ROUNDS):
        write(built, f"round {number}")
        running = [
            subprocess.Popen([STAGE, built, dest], stderr=subprocess.PIPE, text=True)
            for _ in range(AT_A_TIME)
        ]
        assert [one.communicate(timeout=120)[1] for one in running] == [""] * AT_A_TIME
        assert [one.returncode for one in running] == [0] * AT_A_TIME
        found = staged(dest)
        assert found.pop("preload/ld.so.preload")
        assert len(found) == len(FILES) + 4, "the libraries, their links, and nothing half made"
        assert set(found.values()) == {f"round {number}"}
    assert os.readlink(dest / "sim" / "libcuda.so.1") == "libcuda.so.580.1"


def test_a_library_in_use_is_not_rewritten(built: Path, tmp_path: Path) -> None:
    dest = tmp_path / "build"
    write(built, "old")
    subprocess.run([STAGE, built, dest], check=True)
    library = dest / "preload" / "libsluice.so"
    with library.open() as mapped:
        write(built, "new")
        subprocess.run([STAGE, built, dest], check=True)
        assert (mapped.read(), library.read_text()) == ("old", "new")
    inode = library.stat().st_ino
    subprocess.run([STAGE, built, dest], check=True)
    assert library.stat().st_ino == inode, "an unchanged file stays"
