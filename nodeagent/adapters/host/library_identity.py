"""Which file a path leads to, told so that another file with the same inode is another one."""

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
    """Links followed, /proc/PID/map_files among them; None: it is gone, may not be read, or is no
    file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device is not for looking at it
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
    return int(struct.unpack("=I", answer[:4])[0])  # file systems write an int
