"""Opens a database for both services: for one writer, durable when a statement returns, and checked
for corruption before use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

BUSY_S = 2.0
"""Seconds to wait for a lock of another process."""


def open_file(
    path: Path,
    check: str,
    *,
    any_thread: bool = False,
    read_text: Callable[[bytes], object] | None = None,
) -> sqlite3.Connection:
    """Open the file, or create it, with permissions for its owner alone. `check` is
    integrity_check, or quick_check, which skips indices. `read_text` decodes texts instead of
    strict UTF-8. Raises sqlite3.Error, also for a damaged file, and OSError."""
    db = sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_S, check_same_thread=not any_thread
    )
    try:
        os.chmod(path, 0o600)
        if read_text is not None:
            db.text_factory = read_text
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        (answer,) = db.execute(f"PRAGMA {check}(1)").fetchone()
        if answer != "ok":
            raise sqlite3.DatabaseError(answer)
    except BaseException:
        db.close()
        raise
    return db


def bring_up(db: sqlite3.Connection, version: int, schemas: Sequence[str]) -> None:
    """Migrate from schema `version` to the newest, in one transaction."""
    if schemas[version:]:
        steps = " ".join(schemas[version:])
        db.executescript(f"BEGIN; {steps} PRAGMA user_version = {len(schemas)}; COMMIT;")
