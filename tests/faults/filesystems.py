"""File systems of a test's own that fill, turn read-only and lose their power."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: from then on nothing goes to the device any more."""
WITHOUT_THE_LOG = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH: not even the journal that is in memory. As when the power is cut."""


class Ext4:
    """An ext4 in a file, through a loop device."""

    def __init__(self, image: Path, root: Path, mebibytes: int = 24) -> None:
        self.image, self.root = image, root
        self._mounts = 0
        self.root.mkdir(exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(mebibytes << 20)
        # A small journal, so that it is written around more than once.
        subprocess.run(
            ["mkfs.ext4", "-q", "-F", "-J", "size=4", "-b", "1024", self.image], check=True
        )

    def mount(self) -> None:
        """Mount the disk as after a boot: the journal is played back. The mount is of a copy of the
        disk and on a new loop device: some other mount namespace may still hold the first ones (an
        `unshare -m` in between copies our mount), and then the kernel would give us that file
        system again, shut down as it is."""
        if self._mounts:
            before, self.image = self.image, self.image.with_suffix(f".{self._mounts}")
            subprocess.run(["cp", "--sparse=always", before, self.image], check=True)
            before.unlink()
        self._mounts += 1
        device = self._attach()
        try:
            subprocess.run(["mount", device, self.root], check=True)
        finally:  # it goes with its last mount, wherever that is
            subprocess.run(["losetup", "--detach", device], check=True)
        probe = self.root / ".probe"
        probe.write_bytes(b"x")  # raises if it is still shut down
        with probe.open("rb+") as file:
            os.fsync(file.fileno())
        probe.unlink()

    def _attach(self) -> str:
        words = ["losetup", "--find", "--show", str(self.image)]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def unmount(self) -> None:
        """Fails while one of our processes has something open there: nothing is lazy that a next mount stands on."""
        done = subprocess.run(["umount", self.root], check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stderr.strip()}: {users_of(self.root)}"

    def cut_the_power(self) -> None:
        fd = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("=I", WITHOUT_THE_LOG))
        finally:
            os.close(fd)

    def turn_read_only(self) -> None:
        """Remount read-only as the kernel does by itself after an error of the disk, files open for
        writing or not."""
        subprocess.run(["mount", "-o", "remount,abort", self.root], check=False)
        with pytest.raises(OSError, match=r"Read-only|Input/output"):
            (self.root / "probe").write_text("x")


def users_of(root: Path) -> list[str]:
    """Processes with a file open below `root`, as PID NAME FILE."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if (target := os.readlink(link)).startswith(f"{root}/"):
                process = link.parents[1]
                found.append(f"{process.name} {(process / 'comm').read_text().strip()} {target}")
    return found


@contextlib.contextmanager
def ext4(directory: Path, root: Path | None = None) -> Iterator[Ext4]:
    """Its image in `directory`, mounted there as well or at `root`."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not Path("/dev/loop0").exists():
        pytest.skip("root, mkfs.ext4 and loop devices are needed: this disk is NOT tested")
    made = Ext4(directory / "ext4.img", root or directory / "ext4")
    made.mount()
    try:
        yield made
    finally:
        subprocess.run(["umount", "-l", made.root], check=False, capture_output=True)


@contextlib.contextmanager
def small_tmpfs(root: Path, kibibytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a tmpfs needs root: a full disk is NOT tested")
    root.mkdir(exist_ok=True)
    options = f"size={kibibytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "-l", root], check=False, capture_output=True)


def fill(directory: Path) -> Path:
    """To the last byte."""
    path = directory / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (65_536, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path
