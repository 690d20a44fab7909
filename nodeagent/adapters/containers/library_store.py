"""Our libraries as programs get them: without the names that the driver lacks, in a directory that
is named by the hash of its contents and never written to again.

A name that the driver does not export is removed from our copy, so that dlsym() answers for it as
the driver would. The copy is kept apart from the package's files, so that a program which starts
another one next week finds the same files after an upgrade. A directory is removed if no program
got it since the machine booted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeagent.adapters.checks import DRIVER, MARKER, NVML
from nodeagent.adapters.host import elf
from nodeagent.adapters.host.clock import boot_id
from nodeagent.native import NativeFiles, version

_ENTRY_POINT: Final = {DRIVER: "cuInit", NVML: "nvmlInit_v2"}
"""A symbol that each library has: a file without it is another library, and its exports are
not the driver's."""
_NOTE: Final = "last-boot"
_UNFIT: Final = " :;"
"""Characters that end a path in LD_PRELOAD and LD_LIBRARY_PATH."""


def libraries(files: NativeFiles, drivers: Mapping[str, str], root: Path) -> NativeFiles:
    """The files for a program: those of the copy below `root`, or the package's own if no copy can
    be kept. `drivers` has the real library's path by name; an empty one is unknown."""
    wanted = {
        f"shim/{DRIVER}": (files.shim_dir / DRIVER, DRIVER),
        f"shim/{NVML}": (files.shim_dir / NVML, NVML),
        f"preload/{files.preload_library.name}": (files.preload_library, DRIVER),
        f"preload/{files.preload_list.name}": (files.preload_list, ""),
        f"hook/{files.container_hook.name}": (files.container_hook, ""),
    }
    contents = {
        name: fitted(ours.read_bytes(), soname, drivers.get(soname, ""))
        if soname
        else ours.read_bytes()
        for name, (ours, soname) in wanted.items()
        if ours.is_file()
    }
    try:
        return NativeFiles(_kept(contents, root)) if _usable(root) else files
    except OSError:  # No space or read-only: the package's own files work except for the names.
        return files


def fitted(ours: bytes, soname: str, driver: str) -> bytes:
    """Our library with the driver's names only; unchanged if the driver cannot be read."""
    try:
        theirs = elf.exports(Path(driver)) if driver else frozenset()
        if _ENTRY_POINT[soname] not in theirs:
            return ours
        return elf.without(ours, lambda name: name != MARKER and name not in theirs)
    except (OSError, elf.NotElf, ValueError):
        return ours


def _usable(root: Path) -> bool:
    """True if libraries can be loaded from the directory and no other user can write to it."""
    if any(mark in str(root) for mark in _UNFIT):
        return False
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    seen = root.stat()
    return (
        seen.st_uid == os.geteuid()
        and not seen.st_mode & 0o022
        and not os.statvfs(root).f_flag & os.ST_NOEXEC
    )


def _kept(contents: Mapping[str, bytes], root: Path) -> Path:
    digest = hashlib.sha256()
    for name, data in contents.items():
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    place = root / f"{version()}-{digest.hexdigest()[:16]}"
    if _holds(place, contents):
        _use(place)
        return place
    made = Path(tempfile.mkdtemp(prefix=f".new-{boot_id()}-", dir=root))
    try:
        for name, data in contents.items():
            path = made / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o555)
        for directory in (made, *{(made / name).parent for name in contents}):
            directory.chmod(0o755)
        _use(made)
        _move(made, place)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not _holds(place, contents):  # Another process created the same copy.
            raise
    _forget(root, keep=place)
    return place


def _holds(place: Path, contents: Mapping[str, bytes]) -> bool:
    try:
        return all((place / name).read_bytes() == data for name, data in contents.items())
    except OSError:
        return False


def _move(made: Path, place: Path) -> None:
    """Move a finished copy to its place. A damaged one there (power lost while it was written) is
    moved away whole."""
    if place.exists() and place.is_dir():
        aside = Path(tempfile.mkdtemp(prefix=f".old-{boot_id()}-", dir=place.parent))
        place.rename(aside / "damaged")
    made.rename(place)


def _use(place: Path) -> None:
    """Record that a program of this boot uses the copy. The boot's id is used because clocks may be
    set back."""
    note = place / _NOTE
    if not note.is_file() or not _of_this_boot(note):
        new = place / f"{_NOTE}.{os.getpid()}"
        new.write_text(boot_id(), encoding="ascii")
        new.replace(note)


def _of_this_boot(note: Path) -> bool:
    """True if the note names this boot. Compared as bytes, because a damaged note counts as another
    boot's."""
    return note.read_bytes() == boot_id().encode()


def _forget(root: Path, keep: Path) -> None:
    """Remove the copies that no program got since the machine booted."""
    for entry in root.iterdir():
        try:
            of_this_boot = _of_this_boot(entry / _NOTE)
        except OSError:
            of_this_boot = boot_id() in entry.name  # It is being created or moved away.
        if entry != keep and not of_this_boot:
            shutil.rmtree(entry, ignore_errors=True)
