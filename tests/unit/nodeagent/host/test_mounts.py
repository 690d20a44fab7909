"""Mounts as the kernel lists them, whatever users name their mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.host.mounts import Mount, read_table, table

GOOD = b"31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
CGROUP = Mount(Path("/sys/fs/cgroup"), "cgroup2", ("rw", "nsdelegate"))


def test_the_mounts_of_this_machine_are_read() -> None:
    found = list(table())
    assert any(one.path == Path("/proc") and one.kind == "proc" for one in found)


@pytest.mark.parametrize(
    "mark", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\xa0", "\xff"], ids=ascii
)
def test_a_users_mount_with_an_odd_name_is_one_mount_and_hides_no_other(mark: str) -> None:
    """Splitting by Python's lines and words ended the daemon's start, or an uninstall, in a
    traceback."""
    odd = mark.encode("latin-1" if mark == "\xff" else "utf-8")
    fuse = b"36 23 0:45 / /home/eve/a%sb rw,nosuid - fuse.x eve%s rw,user_id=1000\n" % (odd, odd)
    found = list(read_table(fuse + GOOD))
    assert [one.kind for one in found] == ["fuse.x", "cgroup2"]
    assert found[1] == CGROUP


def test_escapes_of_the_kernel_are_undone() -> None:
    line = b"36 23 0:45 / /mnt/a\\040b\\134c\\012d rw - tmpfs t rw\n"
    assert [one.path for one in read_table(line)] == [Path("/mnt/a b\\c\nd")]


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"36 23", b"- - -", b"a b c d e f - x", b"a b c - t s o"]
)
def test_what_is_no_line_of_it_is_passed_over(text: bytes) -> None:
    assert list(read_table(text + b"\n" + GOOD)) == [CGROUP]
