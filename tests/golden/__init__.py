"""Files that freeze a contract. A test compares with them; SLUICE_UPDATE_GOLDEN=1 rewrites them, for a human to read
in the diff."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any


def check(path: Path, now: str) -> None:
    """Fails when `now` is not what the file says."""
    if os.environ.get("SLUICE_UPDATE_GOLDEN"):
        path.write_text(now)
    assert path.read_text() == now, (
        f"{path} differs; if that is meant: SLUICE_UPDATE_GOLDEN=1 make test"
    )


def check_entry(path: Path, key: str, now: Any) -> None:
    """Fails when `now` is not what the file, a JSON object, says under that key."""
    if os.environ.get("SLUICE_UPDATE_GOLDEN"):
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # tests of one file may run side by side
            entries = json.load(file)
            entries[key] = now
            file.seek(0)
            file.truncate()
            file.write(json.dumps(entries, indent=2, sort_keys=True) + "\n")
    assert json.loads(path.read_text())[key] == now, (
        f"{path}: {key} differs; if that is meant: SLUICE_UPDATE_GOLDEN=1 make test"
    )
