"""The key of the controller's seals: a file beside the database, for the owner alone.

Beside it, not in it: a database that is lost or restored from an old copy must still know its own
seals, that is what they are for. Who loses the file too starts with a new key; nodes then stop what
the new database does not know.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32


def read_or_make_key(path: Path) -> bytes:
    """Raises OSError, or ValueError for a file that holds no key."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return _make(path)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise ValueError(
            f"{path}: holds no key of {KEY_BYTES} bytes in hexadecimal: put the backup in its"
            " place, or remove it; without it what nodes bring back of a lost database is not"
            " believed"
        )
    return key


def _make(path: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(key.hex() + "\n")
        out.flush()
        os.fsync(handle)
    fresh.replace(path)  # whole or not at all, whenever the power goes
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key
