"""Changes in one directory, reported by inotify through the system calls, because Python's library
has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

IN_CLOEXEC: Final = 0o2000000
IN_NONBLOCK: Final = 0o4000
IN_MODIFY: Final = 0x002
IN_CLOSE_WRITE: Final = 0x008
IN_MOVED_FROM: Final = 0x040
IN_MOVED_TO: Final = 0x080
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_DELETE_SELF: Final = 0x400
IN_MOVE_SELF: Final = 0x800
IN_UNMOUNT: Final = 0x2000
IN_IGNORED: Final = 0x8000
IN_ONLYDIR: Final = 0x01000000

NAMES: Final = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF
"""Names that appear and disappear in a directory, and the directory itself."""
CONTENTS: Final = NAMES | IN_CLOSE_WRITE
"""NAMES, and files that were written."""
_ENDED: Final = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED
_HEAD: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]


class DirectoryWatch:
    """Calls back, in the running event loop, when a name in the directory changes.

    A watch follows the directory it was made for and not its path: when that directory is removed,
    renamed or unmounted, `lost` is true and a new watch has to be made.
    """

    def __init__(self, path: Path, changed: Callable[[], None], mask: int = NAMES) -> None:
        """Raises OSError."""
        self.lost = False
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._fd = opened(path, mask)
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for mask, _ in events(self._fd):
                self.lost = self.lost or bool(mask & _ENDED)
            self._changed()


def watch_contents(path: Path, changed: Callable[[], None]) -> DirectoryWatch:
    """Report written files as well. Raises OSError."""
    return DirectoryWatch(path, changed, CONTENTS)


def opened(path: Path, mask: int) -> int:
    """A descriptor that reports changes of one directory, for `events` and close(). Raises
    OSError."""
    fd: int = _libc.inotify_init1(IN_CLOEXEC | IN_NONBLOCK)
    if fd < 0:
        raise _error("inotify_init1")
    if _libc.inotify_add_watch(fd, os.fsencode(path), mask | IN_ONLYDIR) < 0:
        error = _error(f"inotify on {path}")
        os.close(fd)
        raise error
    return fd


def events(fd: int) -> Iterator[tuple[int, str]]:
    """Pending events: mask, name in the directory. Raises BlockingIOError if there are none."""
    data = os.read(fd, _READ_BYTES)
    at = 0
    while at < len(data):
        _, mask, _, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
