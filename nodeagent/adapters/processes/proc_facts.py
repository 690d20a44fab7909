"""Facts about processes from /proc."""

from __future__ import annotations

import os
import re
from typing import Final

from nodeagent.adapters.host.library_identity import library_identity
from nodeagent.adapters.processes.cgroups import (
    container_path,
    freezer_path,
    pod_in,
    text_of,
    unified_path,
)
from nodeagent.adapters.processes.identity import LARGEST_PID, read_process
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.watch import MappedLibrary, ProcessFacts

MAX_ANCESTORS: Final = 64
_LIBCUDA: Final = re.compile(rb"/libcuda\.so[.0-9]*(?: \(deleted\))?$")


class ProcInspector:
    def facts(self, pid: int) -> ProcessFacts | None:
        if not 0 < pid <= LARGEST_PID:
            return None
        try:
            process = read_process(pid)
            cgroup_text = text_of(pid)
            ancestors = _ancestors(pid)
        except OSError:
            return None
        try:
            program = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            program = ""
        return ProcessFacts(
            pid=pid,
            starttime_ticks=process.starttime_ticks,
            uid=process.uid,
            program=program,
            cgroup=container_path(unified_path(cgroup_text)),
            pod_uid=pod_in(cgroup_text) or "",
            ancestors=ancestors,
            freezer=container_path(freezer_path(cgroup_text)),
        )

    def driver_libraries(self, pid: int) -> tuple[MappedLibrary, ...]:
        found: dict[tuple[int, int], tuple[str, str]] = {}
        try:
            with open(f"/proc/{pid}/maps", "rb") as maps:
                for line in maps:
                    if b"libcuda.so" not in line:
                        continue
                    fields = line.rstrip(b"\n").split(maxsplit=5)
                    if len(fields) < 6 or not _LIBCUDA.search(fields[5]):
                        continue
                    major, _, minor = fields[3].partition(b":")
                    device = os.makedev(int(major, 16), int(minor, 16))
                    path = fields[5].decode(errors="replace")
                    through = f"/proc/{pid}/map_files/{fields[0].decode(errors='replace')}"
                    found[device, int(fields[4])] = path, through
        except (OSError, ValueError):
            return ()
        return tuple(MappedLibrary(*key, *names) for key, names in found.items())

    def identity(self, path: str) -> LibraryIdentity | None:
        return library_identity(path)

    def file_id(self, path: str) -> tuple[int, int] | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _ancestors(pid: int) -> tuple[tuple[int, int], ...]:
    """A process's ancestors, the parent first. Raises OSError if the process itself has ended."""
    found: list[tuple[int, int]] = []
    parent, _start = _parent_and_start(pid)
    while parent > 0 and len(found) < MAX_ANCESTORS:
        try:
            above, start = _parent_and_start(parent)
        except OSError:  # It ended, so its own ancestors are unknown.
            break
        found.append((parent, start))
        parent = above
    return tuple(found)


def _parent_and_start(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[1]), int(fields[19])
