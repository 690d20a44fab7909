"""A directory of its own for a scene."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A short path: Unix sockets allow 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="sluice-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
