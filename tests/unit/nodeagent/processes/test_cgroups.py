"""Which pod a cgroup's name means."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nodeagent.adapters.processes.cgroups import (
    CgroupPods,
    container_path,
    freezer_path,
    pod_in,
    pod_of,
    text_of,
    unified_path,
    unified_root,
)

UID = "d8aa9a47-ad0f-4bbe-bc12-ab31605d3211"
SYSTEMD = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "pod"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice/cri-1", UID),
        (f"0::/kubepods.slice/kubepods-pod{SYSTEMD}.slice/cri-containerd-ab.scope", UID),
        (f"4:memory:/kubepods/besteffort/pod{UID}/ab\n1:name=systemd:/other", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice", UID),
        (f"0::/kubepods/pod{STATIC}/ab", STATIC),
        ("0::/user.slice/user-1000.slice", None),
        ("0::/system.slice/podman.service", None),
        (f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/ab", None),
        (f"2:name=systemd:/user.slice/u/pod{STATIC}/ab\n0::/kubepods/pod{UID}/ab", UID),
        (f"0::/system.slice/mypod{UID}", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_pod_of_a_cgroup(text: str, pod: str | None) -> None:
    assert pod_in(text) == pod


NO_NEWLINES = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""Characters at which str.splitlines() or a text file of Python's would end a line; the kernel
allows all in a cgroup's name."""


@pytest.mark.parametrize("mark", NO_NEWLINES, ids=ascii)
def test_a_user_names_no_pod_behind_what_looks_like_a_newline(mark: str) -> None:
    own = "0::/user.slice/user-1000.slice/user@1000.service"
    assert pod_in(f"{own}/a{mark}kubepods-pod{SYSTEMD}.slice\n") is None
    path = unified_path(f"{own}/a{mark}0::\n")
    assert path.endswith(f"a{mark}0::")
    assert freezer_path(f"{own}/a{mark}6:freezer:/kubepods/pod{UID}/ab\n") == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a cgroup: needs root")
@pytest.mark.parametrize("mark", ["\r", "\x0c"], ids=ascii)
def test_a_process_in_such_a_cgroup_is_in_no_pod(mark: str) -> None:
    root = unified_root()
    if root is None:
        pytest.skip("no cgroup2 here")
    ours = root / f"sluice-test-{os.getpid()}"
    made = ours / "user.slice" / f"a{mark}kubepods-pod{SYSTEMD}.slice"
    try:
        made.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        with subprocess.Popen(["sleep", "60"]) as process:
            try:
                (made / "cgroup.procs").write_text(str(process.pid))
                assert unified_path(text_of(process.pid)).endswith(made.name)
                assert pod_of(process.pid) is None
            finally:
                process.kill()
    finally:
        for one in (made, made.parent, ours):
            one.rmdir()


@pytest.mark.parametrize(
    ("text", "unified", "freezer"),
    [
        ("0::/a/b\n", "/a/b", ""),
        ("4:memory:/x\n6:freezer:/y\n0::/\n", "/", "/y"),
        ("4:memory:/x\n", "", ""),
        ("0::/gone (deleted)\n", "/gone", ""),
        ("1:name=:freezer:/forged\n7:memory:/0::/forged\n", "", ""),
        ("", "", ""),
    ],
)
def test_the_paths_of_a_process(text: str, unified: str, freezer: str) -> None:
    assert unified_path(text) == unified
    assert freezer_path(text) == freezer


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (f"/kubepods/burstable/pod{UID}/ab", f"/kubepods/burstable/pod{UID}/ab"),
        (f"/kubepods/pod{UID}/ab/inner/pod{STATIC}/x", f"/kubepods/pod{UID}/ab"),
        (
            f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-1.scope/container",
            f"/kubepods.slice/kubepods-pod{SYSTEMD}.slice/crio-1.scope",
        ),
        (f"/user.slice/user-1000.slice/user@1000.service/pod{UID}/ab", ""),
        (f"/kubepods/pod{UID}", ""),
        (f"/kubepods/pod{UID}/", ""),
        (f"/kubepods/pod{UID}/../ab", ""),
        ("/system.slice/ssh.service", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_a_containers_own_cgroup_is_right_below_its_pods(path: str, container: str) -> None:
    assert container_path(path) == container


@pytest.mark.parametrize("tree", ["", "systemd"], ids=["one tree", "a tree per controller"])
def test_pods_with_a_cgroup_are_found(tmp_path: Path, tree: str) -> None:
    root = tmp_path / tree
    burstable = root / "kubepods.slice" / "kubepods-burstable.slice"
    (burstable / f"kubepods-burstable-pod{SYSTEMD}.slice" / "cri-1.scope").mkdir(parents=True)
    (root / "kubepods.slice" / "kubepods-podffffffff_0000_4000_8000_000000000001.slice").mkdir()
    (root / "system.slice" / "ssh.service").mkdir(parents=True)
    (root / "cgroup.procs").touch()
    if not tree:
        (root / "cgroup.controllers").touch()
    found = CgroupPods(tmp_path).pods()
    assert found == {UID, "ffffffff-0000-4000-8000-000000000001"}


def test_without_cgroups_nothing_is_known_rather_than_gone(tmp_path: Path) -> None:
    assert CgroupPods(tmp_path / "absent").pods() is None
    assert CgroupPods(tmp_path).pods() == frozenset()
