"""The NVIDIA driver's capability nodes, as the kernel lists them, which give a program access to a
MIG instance. Source: /proc/driver/nvidia-caps and /proc/devices.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from nodeagent.core.kubelet.cdi_mig import Capabilities, parse_minors

PROC: Final = Path("/proc")
LONGEST_BYTES: Final = 4 << 20
"""Maximum size of mig-minors, which has some thousand lines per card."""
_MAJOR: Final = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE)


def read_capabilities(proc: Path = PROC) -> Capabilities | None:
    """The capability nodes; None if this driver has none. Raises OSError, ValueError."""
    try:
        with (proc / "driver/nvidia-caps/mig-minors").open(encoding="ascii") as file:
            text = file.read(LONGEST_BYTES)
    except FileNotFoundError:
        return None
    major = _MAJOR.search((proc / "devices").read_text(encoding="utf-8", errors="replace"))
    if major is None:
        raise ValueError(f"{proc}/devices names no nvidia-caps: load the module nvidia-caps")
    return Capabilities(int(major[1]), parse_minors(text))
