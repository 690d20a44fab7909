"""Identity of the file behind a path, which differs for another file with the same inode."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import Final

from nodeagent.ports.processes import LibraryIdentity

FS_IOC_GETVERSION: Final = 0x80087601
"""_IOR('v', 1, long); linux/fs.h. ext4, xfs and btrfs have it, overlayfs and tmpfs do not."""


def library_identity(path: str) -> LibraryIdentity | None:
    """The identity of the file; links are followed, /proc/PID/map_files among them. None if it does
    not exist, may not be read, or is not a regular file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # Opening a device may have effects.
            return None
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return LibraryIdentity(
            found.st_dev,
            found.st_ino,
            _generation(fd),
            found.st_size,
            found.st_mtime_ns,
            found.st_uid,
        )
    except OSError:
        return None
    finally:
        os.close(fd)


def _generation(fd: int) -> int:
    try:
        answer = fcntl.ioctl(fd, FS_IOC_GETVERSION, bytes(8))
    except OSError:
        return 0
    return int(struct.unpack("=I", answer[:4])[0])  # File systems write an int.
