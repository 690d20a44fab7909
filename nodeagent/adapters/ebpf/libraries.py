"""The CUDA driver libraries that processes have mapped, recognised by what a file exports.

A name proves nothing, because a copy can have any name. So each executable mapping is examined once
per file (device, inode), through /proc/PID/map_files, which leads to the mapped file itself even if
it was deleted or is covered by a mount.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from nodeagent.adapters.host import elf
from nodeagent.ports.telemetry import FileId

LAUNCHERS: Final = (
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
)
"""Functions by which work enters the driver; tests/ebpf compares them with the interposer's
hooks."""
MARKERS: Final = ("cuLaunchKernel", "cuInit")
OURS: Final = "sluice_interposer_major"
"""A symbol that only our libraries export; see interpose/attach/reallib.c."""
MAX_FILES: Final = 4096


class Kind(Enum):
    OTHER = "other"
    DRIVER = "driver"
    INTERPOSER = "interposer"


@dataclass(frozen=True, slots=True)
class Mapping:
    """One executable mapping of a CUDA library."""

    pid: int
    file: FileId
    path: str
    kind: Kind
    start: int
    offset: int
    """Offset in the file of the mapping's first byte."""
    length: int

    @property
    def through(self) -> str:
        """A path to the mapped file itself."""
        return f"/proc/{self.pid}/map_files/{self.start:x}-{self.start + self.length:x}"


def file_id(path: str | Path) -> FileId | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return FileId(info.st_dev, info.st_ino)


class Libraries:
    def __init__(self) -> None:
        self._kinds: OrderedDict[FileId, Kind] = OrderedDict()

    def forget(self) -> None:
        """Forget the files, because inodes are reused."""
        self._kinds.clear()

    def mapped(self, pid: int) -> list[Mapping]:
        """Mappings of a process; none if it has ended or may not be examined."""
        found = []
        try:
            with open(f"/proc/{pid}/maps", "rb") as maps:
                lines = [line for line in maps if line[: line.find(b" ") + 5].endswith(b"xp")]
        except OSError:
            return []
        for line in lines:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or fields[4] == b"0" or not fields[5].startswith(b"/"):
                continue
            start, _, end = fields[0].partition(b"-")
            major, _, minor = fields[3].partition(b":")
            file = FileId(os.makedev(int(major, 16), int(minor, 16)), int(fields[4]))
            begins = int(start, 16)
            one = Mapping(
                pid,
                file,
                fields[5].strip().decode("utf-8", "replace"),
                Kind.OTHER,
                begins,
                int(fields[2], 16),
                int(end, 16) - begins,
            )
            kind = self._kind(file, Path(one.through))
            if kind is not Kind.OTHER:
                # By stat, as for the known ones: on btrfs and overlayfs maps shows another device.
                same = file_id(one.through) or file
                found.append(replace(one, file=same, kind=kind))
        return found

    def _kind(self, file: FileId, path: Path) -> Kind:
        kind = self._kinds.get(file)
        if kind is None:
            kind = classify(path)
            self._kinds[file] = kind
            if len(self._kinds) > MAX_FILES:
                self._kinds.popitem(last=False)
        return kind


def classify(path: Path) -> Kind:
    """The kind of a file; OTHER also if it cannot be read."""
    try:
        if not all(elf.names_symbol(path, name) for name in MARKERS):
            return Kind.OTHER
        names = elf.exports(path)
    except (elf.NotElf, OSError, ValueError):
        return Kind.OTHER
    if not names.issuperset(MARKERS):
        return Kind.OTHER
    return Kind.INTERPOSER if OURS in names else Kind.DRIVER


def distinct(mappings: Iterable[Mapping]) -> dict[FileId, list[Mapping]]:
    """Mappings, one per file."""
    found: dict[FileId, list[Mapping]] = {}
    for mapping in mappings:
        found.setdefault(mapping.file, []).append(mapping)
    return found


def foreign(mappings: Iterable[Mapping], known: Collection[FileId]) -> list[Mapping]:
    """Mappings of files that are not in `known`, one per file."""
    return [group[0] for file, group in distinct(mappings).items() if file not in known]
