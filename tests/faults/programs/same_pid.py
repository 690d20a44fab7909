"""A process with a pid of our choice: clone3 with set_tid (Linux 5.5; root).

Pids come around after thousands of processes; with this a dead process's is given to another one at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

CLONE3 = 435
"""The same number on x86-64 and aarch64."""


class _Arguments(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size"),
            *("tls", "set_tid", "set_tid_size", "cgroup"),
        )
    ]


def fork_as(pid: int, child: Callable[[], None]) -> None:
    """A child with that pid, which must be free. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(pid)
    arguments = _Arguments(
        exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1
    )
    got = libc.syscall(CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"clone3 for pid {pid}: {os.strerror(number)}")
    if got == 0:
        try:
            child()
        finally:
            os._exit(0)
    assert got == pid
