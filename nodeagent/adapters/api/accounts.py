"""The account that a caller is counted on.

A UID alone is not enough: a user with an entry in /etc/subuid has 65,536 of them, inside a user
namespace, and by a setuid file of a subordinate UID also outside. So a UID in a range of
/etc/subuid counts as the range's owner, and a process in a user namespace below ours as the user
that made it (NS_GET_OWNER_UID), the outermost one if they are nested. For a namespace that root
made (a container runtime's) the UID counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import struct
from pathlib import Path
from typing import Final

from nodeagent.ports.processes import Process

SUBUID: Final = Path("/etc/subuid")
_NS_GET_PARENT: Final = 0xB702
_NS_GET_OWNER_UID: Final = 0xB704
_DEEPEST: Final = 33
"""Linux nests user namespaces 32 deep."""


class Accounts:
    def __init__(self, subuid: Path = SUBUID) -> None:
        self._subuid = subuid
        self._stamp: tuple[int, int] | None = None
        self._ranges: list[tuple[int, int, int]] = []
        """Ranges of /etc/subuid: first UID, number of UIDs, owner."""

    def of(self, process: Process) -> int:
        uid = process.uid
        if uid == 0:
            return 0
        return self._owner_of_range(uid) or _owner_of_namespace(process.pid) or uid

    def _owner_of_range(self, uid: int) -> int:
        """Owner of the range that a UID is in; 0 if it is in none."""
        self._refresh()
        for first, count, owner in self._ranges:
            if first <= uid < first + count:
                return owner
        return 0

    def _refresh(self) -> None:
        try:
            status = os.stat(self._subuid)
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return
            text = self._subuid.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return  # The last reading stays in use.
        self._stamp = stamp
        self._ranges = [one for one in map(_range, text.splitlines()) if one is not None]


def _range(line: str) -> tuple[int, int, int] | None:
    name, _, rest = line.partition(":")
    first, _, count = rest.partition(":")
    with contextlib.suppress(ValueError, KeyError):
        owner = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        return int(first), int(count), owner
    return None


def _owner_of_namespace(pid: int) -> int:
    """User that made the process's user namespace; 0 if it is ours, root's, or unknown."""
    try:
        ours = os.stat("/proc/self/ns/user")
        at = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        for _ in range(_DEEPEST):
            here = os.fstat(at)
            if (here.st_dev, here.st_ino) == (ours.st_dev, ours.st_ino):
                return 0
            parent = fcntl.ioctl(at, _NS_GET_PARENT)
            above = os.fstat(parent)
            if (above.st_dev, above.st_ino) == (ours.st_dev, ours.st_ino):
                os.close(parent)
                raw = fcntl.ioctl(at, _NS_GET_OWNER_UID, bytes(4))
                owner: int = struct.unpack("=I", raw)[0]
                return owner
            os.close(at)
            at = parent
    except OSError:  # Its namespace is not below ours.
        return 0
    finally:
        os.close(at)
    return 0
