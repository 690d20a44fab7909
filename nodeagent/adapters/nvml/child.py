"""The process that calls NVML: reads one request line, answers with one line of JSON, and may be
killed at any time.

A hung driver leaves its callers in uninterruptible sleep, so the daemon never calls NVML itself.
Started as `python -m nodeagent.adapters.nvml.child [LIBRARY]`; ends when its standard input closes
or its parent dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from nodeagent.adapters.host.children import die_with_parent
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.sweep import Sweeper
from nodeagent.adapters.nvml.wire import encode
from nodeagent.ports.gpus import NodeReading

NVML_FILE: Final = "libnvidia-ml.so"
SONAME: Final = "libnvidia-ml.so.1"
DELETED: Final = " (deleted)"
START_AGAIN: Final = frozenset(
    {
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    }
)
"""Errors after which this process ends: the driver was replaced or unloaded, and only a new process
maps the new library."""


def mapped_library() -> tuple[Path, tuple[int, int]] | None:
    """The file of NVML that this process has mapped, with its device and inode; None if it is
    unknown."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        path = line.partition("/")[2]
        if NVML_FILE in path and not path.endswith(DELETED):
            try:
                status = os.stat(f"/{path}")
            except OSError:
                return None
            return Path(f"/{path}"), (status.st_dev, status.st_ino)
    return None


def was_replaced(path: Path, identity: tuple[int, int]) -> bool:
    """True if an upgrade put another file in its place, or made the name that the loader searches
    for a link to another version beside it."""
    for name in (path, path.with_name(SONAME)):
        try:
            status = os.stat(name)
        except OSError:
            if name == path:
                return True
            continue  # The configuration names a file without this name beside it.
        if (status.st_dev, status.st_ino) != identity:
            return True
    return False


def main() -> int:
    die_with_parent()
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # A library that prints must not break the protocol.
    library = sys.argv[1] if len(sys.argv) > 1 else None
    sweeper: Sweeper | None = None
    mapped: tuple[Path, tuple[int, int]] | None = None
    for _request in sys.stdin:
        over = False
        try:
            if sweeper is None:
                sweeper = Sweeper(library)
                mapped = mapped_library()
            reading = sweeper.sweep()
            # This process would keep working with its old library while every new program fails.
            over = mapped is not None and was_replaced(*mapped)
        except pynvml.NVMLError as error:
            reading = NodeReading(error=str(error))
            over = error.value in START_AGAIN
        except OSError as error:
            reading = NodeReading(error=f"NVML cannot be loaded: {error}")
            over = True
        if not write_line(answers, encode(reading) + "\n") or over:
            return 0
    return 0


def write_line(fd: int, text: str) -> bool:
    """Write without a buffer, which the interpreter would flush at its end and complain about.
    Returns False if the daemon has ended."""
    data = memoryview(text.encode("ascii"))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
