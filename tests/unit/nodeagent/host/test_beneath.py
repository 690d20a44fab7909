"""Nothing leaves its directory, with the kernel's openat2 and without it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.host import beneath
from nodeagent.adapters.host.beneath import (
    NotBeneath,
    open_beneath,
    open_regular,
    read_beneath,
)


@pytest.fixture(params=["openat2", "by hand"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[int]:
    """A directory `in` with a file, a deeper one, and links; `out` is what must never be reached."""
    if request.param == "by hand":

        def refuse(*arguments: object) -> int:
            raise OSError(errno.ENOSYS, "an old kernel")

        monkeypatch.setattr(beneath, "_openat2", refuse)
    inside = tmp_path / "in"
    (inside / "deep").mkdir(parents=True)
    (inside / "file").write_text("inside")
    (inside / "deep" / "file").write_text("deep")
    (tmp_path / "out").write_text("outside")
    (inside / "link").symlink_to(tmp_path / "out")
    (inside / "near").symlink_to("file")
    (inside / "up").symlink_to("..")
    (inside / "linked").symlink_to("deep")
    os.mkfifo(inside / "pipe")
    with beneath.directory(inside) as fd:
        yield fd


@pytest.mark.parametrize(("name", "text"), [("file", b"inside"), ("deep/file", b"deep")])
def test_what_is_inside_can_be_read(root: int, name: str, text: bytes) -> None:
    assert read_beneath(root, name) == text


@pytest.mark.parametrize(
    "name",
    [
        "link",
        "near",
        "up/out",
        "linked/file",
        "../out",
        "deep/../../out",
        "/etc/passwd",
        "",
        "a//b",
    ],
)
def test_links_and_ways_out_are_refused(root: int, name: str) -> None:
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(NotBeneath):
            open_beneath(root, name, flags, 0o600 if flags else 0)


def test_a_pipe_does_not_make_us_wait_and_is_refused(root: int) -> None:
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(root, "pipe", os.O_RDONLY)
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular(root, "deep", os.O_RDONLY)


def test_what_is_not_there_is_not_there(root: int) -> None:
    with pytest.raises(FileNotFoundError):
        read_beneath(root, "absent")
    with pytest.raises(FileNotFoundError):
        read_beneath(root, "absent/file")


def test_a_file_is_replaced_whole_and_links_planted_in_its_way_are_not_followed(
    root: int, tmp_path: Path
) -> None:
    (tmp_path / "in" / ".file.new").symlink_to(tmp_path / "out")
    beneath.replace_beneath(root, "file", b"new", 0o640)
    assert (tmp_path / "in" / "file").read_text() == "new"
    assert (tmp_path / "in" / "file").stat().st_mode & 0o777 == 0o640
    beneath.replace_beneath(root, "link", b"ours")
    assert not (tmp_path / "in" / "link").is_symlink()
    assert (tmp_path / "out").read_text() == "outside"
    assert not list((tmp_path / "in").glob(".*.new"))


def test_a_file_without_end_is_refused(root: int, tmp_path: Path) -> None:
    with (tmp_path / "in" / "file").open("wb") as file:
        file.truncate(beneath.LARGEST_FILE + 1)
    with pytest.raises(OSError, match="too large"):
        read_beneath(root, "file")


def test_a_directory_that_is_a_link_is_none(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(NotADirectoryError), beneath.directory(tmp_path / "link"):
        raise AssertionError


def test_no_descriptor_is_left_behind(root: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in ("file", "link", "pipe", "absent", "deep/file", "linked/file"):
        try:
            os.close(open_regular(root, name, os.O_RDONLY))
        except OSError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
