"""The key of the controller's seals: a file beside the database that only the owner can read.

It is not in the database, because seals have to be verified after the database is lost or restored
from a backup. If the file is lost too, a new key is created, and nodes stop work that the new
database does not have.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32


def read_or_make_key(path: Path) -> bytes:
    """The key in the file, which is created if missing. Raises OSError, or ValueError for a file
    without a key."""
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
            f"{path}: does not contain a key of {KEY_BYTES} bytes in hexadecimal: restore a backup,"
            " or remove the file; without the key, work that nodes report of a lost database is"
            " not accepted"
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
    fresh.replace(path)  # The rename is atomic, also across a power failure.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key
