"""How near the daemon is to its limit of file descriptors, and who has to stand back for whom.

New descriptors get the lowest free number, so the number of one that was just made tells how many
are open. Users' connections end first, then new grants are refused, then registrations wait;
what is left is the daemon's own: a reader that is started again, a file of a region.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""What says that the machine, and not whoever asked, is at its end."""
FEWEST: Final = 1024
"""Below it a node of some size runs out; the daemon says so at its start."""


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
        """A connection whose descriptor is `made`."""
        return self.limit - made > self._users

    def for_grant(self) -> bool:
        try:
            made = os.dup(2)
        except OSError:
            return False
        os.close(made)
        return self.limit - made > self._registrations


class Spare:
    """A descriptor kept to be given up: with it a caller is told no, instead of waiting in a queue
    that nobody can take it from."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def give(self) -> bool:
        """There is one free now. False: there was none left."""
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
