"""Mount namespaces and bind mounts by the system calls: Python's library has no mount(), and
unshare() only since 3.12.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWPID: Final = 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_PRIVATE = 2, 4, 8, 1 << 18
MNT_DETACH: Final = 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
"""Numbers of the system call, for which the libc has no function."""
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]


def private_namespace() -> None:
    """Move to a private mount namespace: mounts of this process are visible to it and its children
    only, while the host's still propagate into it. Raises OSError."""
    unshare(CLONE_NEWNS)
    mount(None, Path("/"), MS_REC | MS_SLAVE)


def unshare(flags: int) -> None:
    """Leave what is shared with the parent: CLONE_NEW*. Raises OSError."""
    if _libc.unshare(flags) != 0:
        raise _error("unshare")


def enter(namespace: int) -> None:
    """Join a namespace by an open /proc/PID/ns file; a PID namespace takes effect for children
    only. Raises OSError."""
    if _libc.setns(namespace, 0) != 0:
        raise _error("setns")


def pivot(root: Path) -> None:
    """Make a mounted directory this process's root and unmount the old one. Raises OSError."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(
            errno.ENOSYS, f"pivot_root: unknown number of the system call on {platform.machine()}"
        )
    os.chdir(root)
    if _libc.syscall(number, b".", b".") != 0:
        raise _error(f"pivot_root {root}")
    if _libc.umount2(b".", MNT_DETACH) != 0:
        raise _error("umount of the old root")
    os.chdir("/")


def bind(source: Path, target: Path, read_only: bool = False) -> None:
    """Mount `source` over `target`; both exist and are of one kind. Raises OSError."""
    mount(source, target, MS_BIND)
    if read_only:
        mount(None, target, MS_BIND | MS_REMOUNT | MS_RDONLY)


def tmpfs(target: Path, options: str) -> None:
    """Mount an empty file system over a directory. Raises OSError."""
    mount(Path("tmpfs"), target, 0, "tmpfs", options)


def mount(
    source: Path | None, target: Path, flags: int, kind: str | None = None, data: str | None = None
) -> None:
    """mount(2). Raises OSError."""
    if (
        _libc.mount(
            None if source is None else os.fsencode(source),
            os.fsencode(target),
            None if kind is None else kind.encode(),
            flags,
            None if data is None else data.encode(),
        )
        != 0
    ):
        raise _error(f"mount {target}")


def detach(target: Path) -> None:
    """Detach the topmost mount; its open files stay usable. Raises OSError."""
    if _libc.umount2(os.fsencode(target), MNT_DETACH) != 0:
        raise _error(f"umount {target}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class Mount:
    path: Path
    kind: str
    """Type of the file system, for example `cgroup2`, `fuse.sshfs`."""
    options: tuple[str, ...]
    """Options of the file system, not of the mount."""
    root: str = "/"
    """The directory of the file system that is mounted; of a cgroup hierarchy the container's own
    cgroup, where a container sees no other."""


def table(pid: int | None = None) -> Iterator[Mount]:
    """The mount table as this process sees it, or another one. Raises OSError."""
    return read_table(Path(f"/proc/{pid or 'self'}/mountinfo").read_bytes())


def read_table(text: bytes) -> Iterator[Mount]:
    """Parse a mountinfo. Any user can mount FUSE and choose its directory and source: the kernel
    escapes blanks, newlines and backslashes in them and nothing else, so only these are
    unescaped."""
    for line in text.split(b"\n"):
        fields, dash, rest = line.partition(b" - ")
        before, after = fields.split(b" "), rest.split(b" ")
        if dash and len(before) > 5 and len(after) > 2:
            yield Mount(
                Path(os.fsdecode(_plain(before[4]))),
                after[0].decode(errors="replace"),
                tuple(after[-1].decode(errors="replace").split(",")),
                os.fsdecode(_plain(before[3])),
            )


def _plain(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), field)
