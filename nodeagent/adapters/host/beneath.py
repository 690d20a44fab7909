"""Files in directories where other users may write, opened without leaving the directory.

`openat2` (Linux 5.6) resolves a path within a directory and follows no link, in one step, so that
no part of it can be exchanged meanwhile. If the kernel or a seccomp filter refuses the call, the
path is walked component by component with the same effect.
docs/decisions/node/0009-files-beneath.md says why no library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SYS_OPENAT2: Final = 437
"""Number of the system call on every architecture."""
RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_BENEATH: Final = 0x08
_RESOLVE: Final = RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH
_REFUSED: Final = (errno.ENOSYS, errno.EPERM, errno.E2BIG, errno.EINVAL)
_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LARGEST_FILE: Final = 1 << 20


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class NotBeneath(OSError):
    """The path leads out of its directory, or over a link."""


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """A descriptor for a directory that this daemon made; its own name must not be a link. Raises
    OSError."""
    fd = os.open(path, _DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def open_beneath(root: int, name: str, flags: int, mode: int = 0) -> int:
    """A descriptor for `name`, a relative path below the directory `root`. Raises NotBeneath,
    OSError."""
    _check(name)
    try:
        return _openat2(root, name, flags, mode)
    except NotBeneath:
        raise
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    return _walk(root, name, flags, mode)


def open_regular(root: int, name: str, flags: int, mode: int = 0) -> int:
    """A descriptor for a regular file; anything else is refused, and opening a pipe does not block.
    Raises NotBeneath, OSError."""
    fd = open_beneath(root, name, flags | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", name)
    return fd


def read_beneath(root: int, name: str) -> bytes:
    """The file's contents; more than LARGEST_FILE bytes are an error. Raises NotBeneath,
    OSError."""
    fd = open_regular(root, name, os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise OSError(errno.EFBIG, "is too large", name)
    return data


def replace_beneath(root: int, name: str, data: bytes, mode: int = 0o644) -> None:
    """Replace `name`, one component, by renaming, so that readers see the old or the new file.
    Raises OSError."""
    temporary = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=root)
    fd = open_regular(root, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)


def _check(name: str) -> None:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "" in parts or "\0" in name:
        raise NotBeneath(errno.EXDEV, "is not below its directory", name)


def _openat2(root: int, name: str, flags: int, mode: int) -> int:
    how = _OpenHow(flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, _RESOLVE)
    for _ in range(8):  # EAGAIN: a concurrent rename made the result uncertain.
        fd = _libc.syscall(
            SYS_OPENAT2, root, os.fsencode(name), ctypes.byref(how), ctypes.sizeof(how)
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    if number in (errno.EXDEV, errno.ELOOP):
        raise NotBeneath(number, "leads over a link", name)
    raise OSError(number, os.strerror(number), name)


def _walk(root: int, name: str, flags: int, mode: int) -> int:
    *above, last = name.split("/")
    here = os.dup(root)
    try:
        for part in above:
            below = os.open(part, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        return os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=here)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise NotBeneath(error.errno, "leads over a link", name) from error
        raise
    finally:
        os.close(here)
