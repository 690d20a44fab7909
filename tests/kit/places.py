"""Where the build put things; one place, so that no test spells a path."""

import os
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
MESON = BUILD / "meson"
SIM = BUILD / "sim"
SHIM = BUILD / "shim"
PRELOAD = BUILD / "preload" / "libsluice.so"
CONTAINER_HOOK = BUILD / "hook" / "sluice-container-hook"
TENANT = MESON / "tests" / "tenant"
AT_REST = ("--warm", "0", "--launches", "1", "--idle", "3600")
"""A tenant that is on the GPU and makes no more calls. For tests that freeze it: one that is stopped in the middle
of a call keeps the simulated driver's lock from all others, where a real driver has it in the kernel."""
GATE_PROBE = MESON / "tests" / "libgate_probe.so"
_BESIDE = Path(sys.executable).parent / "sluice"
SLUICE = _BESIDE if _BESIDE.exists() else REPO / ".venv" / "bin" / "sluice"
"""The `sluice` command of the virtual environment that runs the tests; in an archive of `make gpu-archive` a wrapper around
the machine's Python."""


def preloaded(library: Path) -> str:
    """The library for LD_PRELOAD, where a name ends at a space: relative to the working directory, which tests leave at the
    top of a checkout, when its absolute path has one."""
    return os.path.relpath(library) if " " in str(library) else str(library)
