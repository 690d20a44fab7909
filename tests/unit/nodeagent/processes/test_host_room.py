"""Room in the host's memory: from /proc as it is, and from cgroups that a test lays out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.checkpoint import host_room
from nodeagent.adapters.checkpoint.host_room import SystemHostRoom
from nodeagent.adapters.host import mounts

MIB = 1 << 20


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hierarchy in which every process is in /pod/container."""
    monkeypatch.setattr(host_room, "find_unified_root", lambda: tmp_path)
    monkeypatch.setattr(host_room, "freezer_root", lambda: None)
    monkeypatch.setattr(host_room, "text_of", lambda pid: "0::/pod/container\n")
    (tmp_path / "pod" / "container").mkdir(parents=True)
    return tmp_path


def limit(directory: Path, most: str, used_mib: int, files_mib: int = 0) -> None:
    (directory / "memory.max").write_text(f"{most}\n")
    (directory / "memory.current").write_text(f"{used_mib * MIB}\n")
    (directory / "memory.stat").write_text(f"anon 1\ninactive_file {files_mib * MIB}\n")


def test_meminfo_is_in_kib(tmp_path: Path) -> None:
    found = tmp_path / "meminfo"
    found.write_text("MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n")
    room = SystemHostRoom(found)
    assert (room.total_bytes(), room.available_bytes()) == (16 * MIB, 8 * MIB)
    real = SystemHostRoom()
    assert real.total_bytes() > real.available_bytes() > 0


@pytest.mark.parametrize(
    ("container", "pod", "left"),
    [
        (("max", 10, 0), ("max", 10, 0), None),
        ((str(100 * MIB), 40, 0), ("max", 90, 0), (60, "pod/container")),
        ((str(100 * MIB), 40, 30), ("max", 90, 0), (90, "pod/container")),
        ((str(100 * MIB), 40, 0), (str(80 * MIB), 70, 0), (10, "pod")),
        ((str(100 * MIB), 140, 0), ("max", 0, 0), (0, "pod/container")),
    ],
    ids=["no limit", "its own", "files are room", "the pod's is nearer", "none left"],
)
def test_the_cgroup_with_least_room_counts(
    unified: Path,
    container: tuple[str, int, int],
    pod: tuple[str, int, int],
    left: tuple[int, str] | None,
) -> None:
    limit(unified / "pod" / "container", *container)
    limit(unified / "pod", *pod)
    found = SystemHostRoom().headroom(os.getpid())
    assert found == (None if left is None else (left[0] * MIB, str(unified / left[1])))


def test_a_cgroup_outside_of_our_namespace_has_no_room(
    unified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_room, "text_of", lambda pid: "0::/../other\n")
    found = SystemHostRoom().headroom(os.getpid())
    assert found == (0, "/../other, which is not visible here")


@pytest.fixture
def first_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's hierarchy for memory; this process is in a container and sees its own cgroup."""
    monkeypatch.setattr(host_room, "find_unified_root", lambda: None)
    monkeypatch.setattr(host_room, "text_of", lambda pid: "4:memory:/pod/container\n")
    monkeypatch.setattr(host_room, "HOST", f"{tmp_path}/host")
    own = tmp_path / "own"
    for one, least_mib in ((own, 100), (tmp_path / "host/memory", 300)):
        one.mkdir(parents=True)
        (one / "memory.limit_in_bytes").write_text(f"{least_mib * MIB}\n")
        (one / "memory.usage_in_bytes").write_text("0\n")

    def table(pid: int | None = None) -> list[mounts.Mount]:
        there = (Path("/memory"), "/") if pid == 1 else (own, "/agent")
        return [mounts.Mount(there[0], "cgroup", ("rw", "memory"), there[1])]

    monkeypatch.setattr(mounts, "table", table)
    return tmp_path / "host/memory"


def test_version_1_is_read_as_the_host_has_it_and_not_as_a_container_sees_it(
    first_version: Path,
) -> None:
    found = SystemHostRoom().headroom(os.getpid())
    assert found == (0, "/pod/container, which is not visible here")
    container = first_version / "pod/container"
    container.mkdir(parents=True)
    assert SystemHostRoom().headroom(os.getpid()) == (300 * MIB, str(first_version))
    (container / "memory.limit_in_bytes").write_text(f"{200 * MIB}\n")
    (container / "memory.usage_in_bytes").write_text(f"{50 * MIB}\n")
    assert SystemHostRoom().headroom(os.getpid()) == (150 * MIB, str(container))


def test_a_frozen_cgroup_holds_still(unified: Path) -> None:
    assert SystemHostRoom().holds_still(os.getpid()) == ""
    (unified / "pod" / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert SystemHostRoom().holds_still(os.getpid()) == f"its cgroup {unified / 'pod'} is frozen"


def test_a_stopped_process_holds_still_and_one_that_is_gone_does_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert "stopped" in SystemHostRoom().holds_still(child.pid)
        os.kill(child.pid, signal.SIGCONT)
    finally:
        child.kill()
        child.communicate()
    assert SystemHostRoom().holds_still(child.pid) == ""
    assert SystemHostRoom().headroom(child.pid) is None
