"""Mounts for regions: in the namespace that is meant, seen from ours, and a refusal where they cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.region.mounts import RegionMounts, region_mounts
from tests.kit.places import REPO

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or RegionMounts().refusal(Path("/run")) is not None,
    reason="may not mount here",
)
PROGRAM = """
import ctypes, sys
from pathlib import Path
from nodeagent.adapters.region.mounts import region_mounts
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, (1 << 19) | 0x4000, None) == 0  # slave: what units have
root = Path(sys.argv[1])
mounts = region_mounts(root)
print(mounts.refusal(root))
mounts.mount(root / "grant", "size=4k", 0)
(root / "grant" / "from-inside").write_text("x")
input()
assert mounts.unmount(root / "grant")
assert not mounts.unmount(root / "grant")
print(sorted(path.name for path in root.iterdir()))
"""


def host_mounts() -> str:
    return Path("/proc/1/mounts").read_text()


@needs_root
def test_a_daemon_in_a_namespace_of_its_own_mounts_where_the_host_sees_it(tmp_path: Path) -> None:
    try:
        same = os.stat(f"/proc/1/root{tmp_path}").st_ino == tmp_path.stat().st_ino
    except OSError:
        same = False
    if not same:
        pytest.skip("pid 1 does not have our files")
    (tmp_path / "grant").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPO,
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        assert inside.stdout.readline() == "None\n"
        while f" {tmp_path}/grant tmpfs" not in host_mounts():
            assert inside.poll() is None
        inside.stdin.write("\n")
        inside.stdin.flush()
        assert inside.stdout.readline() == "['grant']\n"
        assert inside.wait(60) == 0
    assert str(tmp_path) not in host_mounts()


def test_where_nothing_can_be_mounted_it_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    assert region_mounts(tmp_path / "absent").refusal(tmp_path / "absent") is not None
    mounts = RegionMounts(lambda call: (-1, 1))
    assert mounts.refusal(tmp_path) == "Operation not permitted"
    with pytest.raises(PermissionError, match="grant"):
        mounts.mount(tmp_path / "grant", "", 0)
    assert list(tmp_path.iterdir()) == []
