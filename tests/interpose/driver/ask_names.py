"""The names that a shared library exports."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


@cache
def exported(library: Path, kinds: str = "TWi") -> tuple[str, ...]:
    """`kinds` as nm tells them: T for functions, B and D for variables."""
    out = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in out.splitlines())
    return tuple(row[2].partition("@")[0] for row in rows if len(row) == 3 and row[1] in kinds)
