"""Starts child processes with this Python, as isolated as the daemon."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def python_child(module: str, *arguments: str) -> list[str]:
    """The command for a module. The installed daemon runs with -I, so that neither the environment
    nor the working directory influences which modules root loads; its children do the same."""
    return [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", module, *arguments]


def die_with_parent() -> None:
    """Have the kernel kill this child when its parent dies: it may hang in a driver while the
    daemon is killed, and would stay for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
