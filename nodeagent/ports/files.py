"""Port for watching a directory for changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class DirectoryWatch(Protocol):
    @property
    def lost(self) -> bool:
        """True if the directory is no longer at its path, so that a new watch is needed."""

    def close(self) -> None:
        """Idempotent."""


class WatchDirectory(Protocol):
    def __call__(self, path: Path, changed: Callable[[], None]) -> DirectoryWatch:
        """Call `changed` in the running event loop when a name in the directory, or a file's
        content, changes. Raises OSError."""
