"""Mount namespaces and bind mounts, by the system calls: Python's library has no mount(), and
unshare() only since 3.12."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
]


def private_namespace() -> None:
    """From here on what this process mounts is seen by it and its children only; what the host
    mounts still comes in. Raises OSError."""
    if _libc.unshare(CLONE_NEWNS) != 0:
        raise _error("unshare")
    _mount(None, Path("/"), MS_REC | MS_SLAVE)


def bind(source: Path, target: Path, read_only: bool = False) -> None:
    """Show `source` in the place of `target`; both exist and are of one kind. Raises OSError."""
    _mount(source, target, MS_BIND)
    if read_only:
        _mount(None, target, MS_BIND | MS_REMOUNT | MS_RDONLY)


def tmpfs(target: Path, options: str) -> None:
    """An empty file system over a directory. Raises OSError."""
    _mount(Path("tmpfs"), target, 0, "tmpfs", options)


def _mount(
    source: Path | None, target: Path, flags: int, kind: str | None = None, data: str | None = None
) -> None:
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


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
