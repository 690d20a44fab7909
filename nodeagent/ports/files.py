"""Word of changes in a directory, and the port to who tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class DirectoryWatch(Protocol):
    @property
    def lost(self) -> bool:
        """The directory is not at its path any more: a new watch has to be made."""

    def close(self) -> None:
        """Idempotent."""


class WatchDirectory(Protocol):
    def __call__(self, path: Path, changed: Callable[[], None]) -> DirectoryWatch:
        """Calls `changed` in the running event loop when a name in the directory, or a file's
        contents, change. Raises OSError."""
