"""Lock for one daemon per runtime directory and per state directory, with the holder's name in it.

The kernel releases the lock with the process, so it is never stale; the text in the file is for
people. A package's service and a DaemonSet on one node have the same directory, and so the same
lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from nodeagent.adapters.host import beneath

NAME: Final = "lock"
LONGEST_COMMAND: Final = 80


class Taken(Exception):
    """Another process has the lock; the text names it and says what to do."""


class InstanceLock:
    def __init__(self, directory: Path, setting: str = "daemon.runtime_dir") -> None:
        """Takes the lock and holds it until `close` or the end of the process. `setting` is the
        setting that names the directory. Raises Taken, OSError."""
        with beneath.directory(directory) as root:
            # Not truncated, because until the lock is taken the text in it is the holder's.
            fd = beneath.open_regular(root, NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(fd, 64, 0))
            os.close(fd)
            raise Taken(
                f"another daemon{holder} serves {directory} already: stop it first (`systemctl"
                f" stop sluice`, or its DaemonSet), or give this one a {setting} of its own"
            ) from None
        except OSError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holder(text: bytes) -> str:
    """PID of the holder from the file, and its command line if that PID exists here."""
    number = text.strip()
    if not number.isdigit():
        return ""
    command = ""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{int(number)}/cmdline").read_bytes().split(b"\0")
        command = b" ".join(words).decode(errors="replace").strip()
    safe = "".join(c if c.isprintable() else "?" for c in command)[:LONGEST_COMMAND]
    return f" (pid {int(number)}{f', {safe}' if safe else ''})"


def is_held(directory: Path) -> bool:
    """True while a daemon holds the lock; also if the lock cannot be examined."""
    try:
        with beneath.directory(directory) as root:
            fd = beneath.open_regular(root, NAME, os.O_RDONLY, 0)
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
