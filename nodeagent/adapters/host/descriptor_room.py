"""File descriptors that are left to the daemon, and what is refused when they run short.

New descriptors get the lowest free number, so the number of a new one tells how many are open.
Users' connections are refused first, then new grants, then registrations; the rest is for the
daemon itself: a reader that is restarted, a file of a region.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors by which the machine, and not the caller, has reached a limit."""
FEWEST: Final = 1024
"""Minimum for the limit, below which the daemon warns at its start; larger nodes run out."""


def is_short(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in SHORT


class DescriptorRoom:
    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._own = max(12, min(64, self.limit // 16))
        self._registrations = self._own + min(4096, self.limit // 4)
        self._users = self._registrations + max(4, min(512, self.limit // 16))

    def for_root(self, made: int) -> bool:
        return self.limit - made > self._own

    def for_user(self, made: int) -> bool:
        """True if a user's connection may be kept; `made` is its descriptor."""
        return self.limit - made > self._users

    def for_grant(self) -> bool:
        try:
            made = os.dup(2)
        except OSError:
            return False
        os.close(made)
        return self.limit - made > self._registrations


class Spare:
    """A reserved descriptor: with it a caller can be accepted and closed at once, instead of
    waiting in a backlog that cannot be emptied."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def give(self) -> bool:
        """Close the reserved descriptor, so that one is free. False if it was closed already."""
        if self._fd < 0:
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def take_back(self) -> None:
        if self._fd < 0:
            try:
                self._fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
