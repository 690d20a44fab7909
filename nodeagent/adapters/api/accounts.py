"""On whose account a caller is counted.

A uid is not enough: a user with an entry in /etc/subuid has 65,536 of them. Inside a user
namespace, and, by way of a setuid file of a subordinate uid, also outside. So a uid of a range in
/etc/subuid counts as the range's owner, and whoever lives in a user namespace below ours as the
one who made it (NS_GET_OWNER_UID), the outermost where they are nested. A namespace that root made
(a container runtime's) says nothing about a person: there the uid counts.
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
        """(first, count, owner)."""

    def of(self, process: Process) -> int:
        uid = process.uid
        if uid == 0:
            return 0
        return self._owner_of_range(uid) or _owner_of_namespace(process.pid) or uid

    def _owner_of_range(self, uid: int) -> int:
        """0: nobody's."""
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
            return  # as it was, or none
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
    """0: it lives in ours, root made it, or it cannot be told."""
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
    except OSError:  # a namespace that is not below ours
        return 0
    finally:
        os.close(at)
    return 0
