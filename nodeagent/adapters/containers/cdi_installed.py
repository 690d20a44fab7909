"""The host's own CDI specifications, written by the driver's package or the container toolkit."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodeagent.core.kubelet import cdi_base
from nodeagent.core.kubelet.cdi_base import BaseSpec
from sluicecommon import yaml_text

DIRECTORIES: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The runtimes' defaults; a later directory has priority."""
LARGEST_BYTES: Final = 16 << 20
"""Maximum size of a file; a specification of eight GPUs has about 30 KB."""
SUFFIXES: Final = (".yaml", ".json")
"""The only suffixes that runtimes read."""
_Mark = tuple[int, int, int, int, int]


class InstalledSpecs:
    """Reads each version of a file once, because parsing it in Python takes longer than all other
    work for a grant's file."""

    def __init__(self, directories: Sequence[Path], ours: tuple[str, ...]) -> None:
        """`ours` is the prefix of the names of files that we wrote ourselves."""
        self._directories = tuple(directories)
        self._ours = ours
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[_Mark, BaseSpec | None, str]] = {}

    def read(self) -> tuple[list[BaseSpec], list[str]]:
        """The specifications in the order of the runtime's priority, the last one first, and the
        problems of those that cannot be read, which the runtime ignores as well."""
        with self._lock:
            paths = [path for directory in self._directories for path in self._files(directory)]
            self._known = {path: seen for path in paths if (seen := self._look(path))}
        specs = [spec for _, spec, _ in self._known.values() if spec is not None]
        return specs, [trouble for _, _, trouble in self._known.values() if trouble]

    def _files(self, directory: Path) -> list[Path]:
        try:
            names = sorted(os.listdir(directory))
        except OSError:  # The directory may not exist.
            return []
        return [
            directory / name
            for name in names
            if name.endswith(SUFFIXES) and not name.startswith((*self._ours, "."))
        ]

    def _look(self, path: Path) -> tuple[_Mark, BaseSpec | None, str] | None:
        try:
            # Links are followed: administrators make some, and Debian's alternatives use them.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if isinstance(error, FileNotFoundError):  # It was removed since it was listed.
                return None
            return (0, 0, 0, 0, 0), None, f"{path}: {error.strerror}"
        with os.fdopen(fd, "rb") as file:
            seen = os.fstat(fd)
            mark = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
            known = self._known.get(path)
            if known is not None and known[0] == mark:
                return known
            if not stat.S_ISREG(seen.st_mode):
                return mark, None, f"{path}: not a file"
            try:
                return mark, _parse(file.read(LARGEST_BYTES + 1), path), ""
            except (OSError, ValueError) as error:
                return mark, None, str(error)


def _parse(data: bytes, path: Path) -> BaseSpec | None:
    """The specification in a file. Raises ValueError with the file's name."""
    if len(data) > LARGEST_BYTES:
        raise ValueError(f"{path}: larger than {LARGEST_BYTES >> 20} MiB")
    try:
        text = data.decode()
        document = json.loads(text) if path.suffix == ".json" else yaml_text.read(text)
        json.dumps(document)  # YAML has dates and sets, which JSON cannot express.
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    return cdi_base.parse(document, str(path))
