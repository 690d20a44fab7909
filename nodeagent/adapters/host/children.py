"""How a child process of ours is started: with this Python, as isolated as we are."""

from __future__ import annotations

import sys


def python_child(module: str, *arguments: str) -> list[str]:
    """The command. Installed, we run with -I: neither the environment nor the working directory has
    a say in which modules root loads, so neither has it in the children's."""
    return [sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", module, *arguments]
