"""The CUDA libraries that processes on this host may have mapped: the driver's own, and ours as
they are given out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.adapters.host import DRIVER, library_directories
from nodeagent.native import NativeFiles


def known_libraries(
    files: NativeFiles, environment: Mapping[str, str], kept: Path
) -> Callable[[], frozenset[str]]:
    """Asked again and again, for drivers are updated and copies of ours are made while we run;
    `kept` is where those copies are (library_store.py), in directories that only root writes."""
    directories = [Path(one) for one in library_directories(environment, DRIVER)]

    def known() -> frozenset[str]:
        found = {files.shim_dir / DRIVER, files.preload_library}
        for directory in directories:
            # libcuda.so.1 leads to the versioned file; both by name, links resolved by stat.
            found.update(directory.glob("libcuda.so*"))
        given = environment.get("SLUICE_DRIVER")
        if given:
            found.add(Path(given))
        if kept.is_dir() and kept.stat().st_uid == 0:
            for place in kept.iterdir():
                found.update(place.glob("shim/libcuda.so*"))
                found.update(place.glob("preload/*.so"))
        return frozenset(str(path) for path in found if path.is_file())

    return known
