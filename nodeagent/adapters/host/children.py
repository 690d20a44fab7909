"""How a child process of ours is started: with this Python, as isolated as we are."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def python_child(module: str, *arguments: str) -> list[str]:
    """The command. Installed, we run with -I: neither the environment nor the working directory has
    a say in which modules root loads, so neither has it in the children's."""
    return [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", module, *arguments]


def die_with_parent() -> None:
    """For the child: it may hang in a driver while the daemon is killed, and then nobody else would
    ever end it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
