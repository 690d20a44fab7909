"""Files that freeze a contract. A test compares with them; SLUICE_UPDATE_GOLDEN=1 rewrites them, for a human to read
in the diff."""

from __future__ import annotations

import os
from pathlib import Path


def check(path: Path, now: str) -> None:
    """Fails when `now` is not what the file says."""
    if os.environ.get("SLUICE_UPDATE_GOLDEN"):
        path.write_text(now)
    assert path.read_text() == now, (
        f"{path} differs; if that is meant: SLUICE_UPDATE_GOLDEN=1 make test"
    )
