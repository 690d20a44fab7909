"""The mode by which a node allocated GPUs last, on its disk."""

from __future__ import annotations

from pathlib import Path

from nodeagent.shell.pods.allocation_modes import CLAIMS


class FileMarker:
    """Implements Marker: one word in a file. A file that cannot be read counts as claims: the API
    server is queried then, which takes a moment and allocates no GPU twice."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        try:
            return self._path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return CLAIMS

    def write(self, mode: str) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(f"{mode}\n", encoding="ascii")
        new.replace(self._path)
