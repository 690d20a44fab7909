"""Our libraries as programs are given them: fitted to the driver they stand for, in a directory
named by what is in it, which is never written to again.

Fitted: a name that the driver does not export is taken out of our copy, so that dlsym() answers
for it as the driver would. Kept apart: a program that starts another one next week finds the same
files, whatever became of the package meanwhile; a directory goes when nobody has been given it
since the machine started.
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
"""Without it a file is no such library, and says nothing about what one exports."""
_NOTE: Final = "last-boot"
_UNFIT: Final = " :;"
"""What LD_PRELOAD and LD_LIBRARY_PATH take for the end of a path."""


def libraries(files: NativeFiles, drivers: Mapping[str, str], root: Path) -> NativeFiles:
    """The files to give to a program: of the copy below `root`, or the package's own where none
    can be kept. `drivers` has the real library's path by name; an empty one is unknown."""
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
    except OSError:  # no space, read-only: nothing is lost but the fit
        return files


def fitted(ours: bytes, soname: str, driver: str) -> bytes:
    """Our library with the driver's names only; as it is when the driver cannot be read."""
    try:
        theirs = elf.exports(Path(driver)) if driver else frozenset()
        if _ENTRY_POINT[soname] not in theirs:
            return ours
        return elf.without(ours, lambda name: name != MARKER and name not in theirs)
    except (OSError, elf.NotElf, ValueError):
        return ours


def _usable(root: Path) -> bool:
    """Whether libraries can be loaded from there, and nobody else could have put them there."""
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
        if not _holds(place, contents):  # somebody else made the same meanwhile
            raise
    _forget(root, keep=place)
    return place


def _holds(place: Path, contents: Mapping[str, bytes]) -> bool:
    try:
        return all((place / name).read_bytes() == data for name, data in contents.items())
    except OSError:
        return False


def _move(made: Path, place: Path) -> None:
    """A damaged one (power lost while it was written) is moved away whole."""
    if place.exists() and place.is_dir():
        aside = Path(tempfile.mkdtemp(prefix=f".old-{boot_id()}-", dir=place.parent))
        place.rename(aside / "damaged")
    made.rename(place)


def _use(place: Path) -> None:
    """Note that a program of this boot has it. By the boot's id: clocks are set back and forth."""
    note = place / _NOTE
    if not note.is_file() or not _of_this_boot(note):
        new = place / f"{_NOTE}.{os.getpid()}"
        new.write_text(boot_id(), encoding="ascii")
        new.replace(note)


def _of_this_boot(note: Path) -> bool:
    """As bytes: a damaged note is another boot's."""
    return note.read_bytes() == boot_id().encode()


def _forget(root: Path, keep: Path) -> None:
    """Remove what nobody was given since the machine started: no program can have it."""
    for entry in root.iterdir():
        try:
            of_this_boot = _of_this_boot(entry / _NOTE)
        except OSError:
            of_this_boot = boot_id() in entry.name  # being made, or moved away, just now
        if entry != keep and not of_this_boot:
            shutil.rmtree(entry, ignore_errors=True)
