"""Cgroups of the unified hierarchy: the mount point, the cgroup of a process, and the cgroups that
are refused GPUs.

A refusal is a program attached to the cgroup, whose link is pinned in bpffs, so that it outlives
this process: a container that was contained stays so while the daemon is updated. cgroup v1's
devices controller is left to the container runtime.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.adapters.ebpf.kernel import Kernel
from nodeagent.adapters.ebpf.pins import ASIDE, PIN, own, pinned
from nodeagent.adapters.host import mounts
from nodeagent.adapters.processes import cgroups

FILEID_KERNFS: Final = 0xFE
"""Type of a cgroup's file handle, whose eight bytes are its id; open_by_handle_at(2)."""


def cgroup_text(pid: int) -> str:
    """The text of /proc/PID/cgroup; empty if the process has ended."""
    try:
        return cgroups.text_of(pid)
    except OSError:
        return ""


def cgroup_id(root: Path, path: str) -> int | None:
    """The id that the kernel's helpers return; None for the root, which has all processes, and for
    a cgroup that does not exist."""
    if path in ("", "/"):
        return None
    try:
        return os.stat(root / path.lstrip("/")).st_ino
    except OSError:
        return None


def path_of(root: Path, number: int) -> str:
    """The path of a cgroup by its id, without a search; empty if it does not exist or permission is
    denied."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = struct.pack("=IiQ", 8, FILEID_KERNFS, number)
    try:
        mount = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    fd = libc.open_by_handle_at(mount, handle, os.O_RDONLY | os.O_CLOEXEC)
    os.close(mount)
    if fd < 0:
        return ""
    found = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    relative = os.path.relpath(found, root)
    return "/" if relative == "." else f"/{relative}"


@dataclass(frozen=True, slots=True)
class _Refusal:
    link: int
    """File descriptor of the attached program's link."""
    number: int
    """Inode of the cgroup."""


@dataclass(slots=True)
class Refusals:
    """Cgroups that are refused new opens of GPU devices."""

    kernel: Kernel
    program_fd: int
    root: Path
    pins: Path
    owner: str = ""
    """The daemon's runtime directory, for people and for the next doctor."""
    problem: str = ""
    """Reason why refusals would end with this process; empty if they are pinned."""
    _held: dict[str, _Refusal] = field(default_factory=dict)
    """Refusals by the cgroup's path."""

    def start(self) -> None:
        """Take over the refusals of an earlier run: attach our program, then release the earlier
        one."""
        self.problem = _ready(self.pins)
        if self.problem:
            return
        with contextlib.suppress(OSError):  # The name is for people only.
            own(self.pins, self.owner)
        for number in sorted(set(pinned(self.pins).values())):
            path = path_of(self.root, number)
            aside = self.pins / f"{ASIDE}{number}"  # It exists: an earlier start was interrupted.
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.pins / f"{PIN}{number}", aside)
            if path:
                # Before the old one is released, so that opens are refused all the time.
                self.refuse(path)
            os.unlink(aside)  # The program of a removed cgroup is removed with it.

    def paths(self) -> list[str]:
        """Paths of the refusals in force; a cgroup that was recreated at the same path is another
        one."""
        return sorted(p for p, one in self._held.items() if cgroup_id(self.root, p) == one.number)

    def refuse(self, path: str) -> None:
        """Refuse opens to a cgroup. Raises OSError; ValueError for the root."""
        path = _clean(path)
        directory = self.root / path.lstrip("/")
        number = os.stat(directory).st_ino
        if path in self._held:
            if self._held[path].number == number:
                return
            self.allow(path)
        link = self.kernel.attach_cgroup(self.program_fd, str(directory))
        if not self.problem:
            try:
                self.kernel.pin(link, str(self.pins / f"{PIN}{number}"))
            except OSError:
                os.close(link)
                raise
        self._held[path] = _Refusal(link, number)

    def allow(self, path: str) -> None:
        """Allow opens again. Idempotent. Raises ValueError for the root."""
        refusal = self._held.pop(_clean(path), None)
        if refusal is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.pins / f"{PIN}{refusal.number}")
            os.close(refusal.link)


def _clean(path: str) -> str:
    clean = os.path.normpath("/" + path.lstrip("/"))
    if clean == "/" or ".." in path.split("/"):
        raise ValueError(
            f"{path!r} is not a cgroup below the root: GPUs would be refused to the whole host"
        )
    return clean


def _ready(pins: Path) -> str:
    """Create the directory of pins, and mount bpffs if no unit of the distribution did. Returns the
    error, empty on success."""
    try:
        if not _is_bpffs(pins.parent):
            libc = ctypes.CDLL(None, use_errno=True)
            where = os.fsencode(pins.parent)
            if libc.mount(b"bpf", where, b"bpf", ctypes.c_ulong(0), b"mode=0700") != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))
        pins.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"no bpffs at {pins.parent}: {error.strerror or error}"
    return ""


def _is_bpffs(path: Path) -> bool:
    return any(one.kind == "bpf" and one.path == path for one in mounts.table())
