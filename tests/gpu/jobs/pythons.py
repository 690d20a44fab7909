"""Finds the Python of this machine that has a third-party library."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path


@functools.cache
def python_with(module: str) -> str | None:
    """Ours, or the machine's."""
    probe = f"import importlib.util as i; raise SystemExit(i.find_spec({module!r}) is None)"
    for candidate in (sys.executable, shutil.which("python3"), "/opt/conda/bin/python"):
        if candidate and Path(candidate).exists():
            done = subprocess.run([candidate, "-c", probe], capture_output=True)
            if done.returncode == 0:
                return candidate
    return None
