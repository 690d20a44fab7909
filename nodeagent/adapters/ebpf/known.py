"""The CUDA libraries that processes on this host may have mapped: the driver's own, and the copies
of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from nodeagent.adapters.checks import DRIVER, library_directories
from nodeagent.native import NativeFiles
from nodeagent.units import NS_PER_S

SETTLED_NS: Final = NS_PER_S
"""Age in nanoseconds that a directory's modification time must have to be trusted: a later change
may have the same time."""


class _Drivers:
    """The driver's libraries in one directory. It has thousands of other files, so it is listed
    only after its entries have changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed_ns = -1
        self._files: frozenset[Path] = frozenset()

    def files(self) -> frozenset[Path]:
        try:
            changed_ns = self._directory.stat().st_mtime_ns
        except OSError:
            return frozenset()
        if changed_ns != self._changed_ns:
            # libcuda.so.1 is a link to the versioned file; both are listed, and stat follows links.
            self._files = frozenset(self._directory.glob("libcuda.so*"))
            settled = abs(time.time_ns() - changed_ns) > SETTLED_NS
            self._changed_ns = changed_ns if settled else -1
        return self._files


def known_libraries(
    files: NativeFiles, environment: Mapping[str, str], kept: Path
) -> Callable[[], frozenset[str]]:
    """Paths of the known libraries. Called repeatedly, because drivers are updated and copies of
    ours are made while the daemon runs; `kept` is the directory of the copies (library_store.py),
    in directories that only root can write."""
    directories = [_Drivers(Path(one)) for one in library_directories(environment, DRIVER)]

    def known() -> frozenset[str]:
        found = {files.shim_dir / DRIVER, files.preload_library}
        for directory in directories:
            found.update(directory.files())
        given = environment.get("SLUICE_DRIVER")
        if given:
            found.add(Path(given))
        if kept.is_dir() and kept.stat().st_uid == 0:
            for place in kept.iterdir():
                found.update(place.glob("shim/libcuda.so*"))
                found.update(place.glob("preload/*.so"))
        return frozenset(str(path) for path in found if path.is_file())

    return known
