"""Free memory of the host for checkpoints, from /proc and the cgroups. Implements HostRoom.

A checkpoint's bytes are the target's own memory: they count in its cgroups, and the kernel kills it
during the checkpoint if a limit there is exceeded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodeagent.adapters.host import mounts
from nodeagent.adapters.processes.cgroups import freezer_path, freezer_root, text_of, unified_path
from nodeagent.adapters.processes.cgroups import unified_root as find_unified_root
from nodeagent.units import Bytes

MEMINFO: Final = Path("/proc/meminfo")
HOST: Final = "/proc/1/root"
NO_LIMIT_V1: Final = 1 << 60
"""Limit from which version 1 means "none": it shows about 2^63, rounded to pages."""


class SystemHostRoom:
    def __init__(self, meminfo: Path = MEMINFO) -> None:
        self._meminfo = meminfo

    def total_bytes(self) -> Bytes:
        return self._of("MemTotal")

    def available_bytes(self) -> Bytes:
        return self._of("MemAvailable")

    def _of(self, name: str) -> Bytes:
        for line in self._meminfo.read_text(encoding="ascii").splitlines():
            key, _, rest = line.partition(":")
            if key == name:
                return Bytes(int(rest.split()[0]) * 1024)
        return Bytes(0)

    def headroom(self, pid: int) -> tuple[Bytes, str] | None:
        try:
            text = text_of(pid)
        except OSError:
            return None
        found = [one for one in (*_unified(text), *_first_version(text)) if one is not None]
        return min(found) if found else None

    def holds_still(self, pid: int) -> str:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            text = text_of(pid)
        except OSError:
            return ""
        if stat.rpartition(")")[2].split()[0] in ("T", "t"):
            return "it was stopped (SIGSTOP, or a debugger)"
        root, path = find_unified_root(), unified_path(text)
        if root is not None and path:
            for directory in _outwards(root, path):
                if "frozen 1" in _read(directory / "cgroup.events"):
                    return f"its cgroup {directory} is frozen"
        old_root, old = freezer_root(), freezer_path(text)
        if old_root is not None and old:
            directory = old_root / old.lstrip("/")
            if _read(directory / "freezer.state").strip() not in ("", "THAWED"):
                return f"its cgroup {directory} is frozen"
        return ""


def _unified(text: str) -> Iterator[tuple[Bytes, str]]:
    root, path = find_unified_root(), unified_path(text)
    if root is None or not path:
        return
    if ".." in path.split("/"):
        yield Bytes(0), f"{path}, which is not visible here"
        return
    for directory in _outwards(root, path):
        limit = _read(directory / "memory.max").strip()
        current = _read(directory / "memory.current").strip()
        if limit.isdecimal() and current.isdecimal():
            files = _counted(directory / "memory.stat", "inactive_file")
            yield _left(int(limit), int(current) - files), str(directory)


def _first_version(text: str) -> Iterator[tuple[Bytes, str]]:
    path = next((line.split(":", 2)[2] for line in text.split("\n") if ":memory:" in line), "")
    found = [one for one in _memory_mounts() if path]
    if not found:
        return
    root = next((one for one in found if os.path.isdir(one / path.lstrip("/"))), None)
    if root is None or ".." in path.split("/"):
        yield Bytes(0), f"{path}, which is not visible here"
        return
    for directory in _outwards(root, path):
        limit = _read(directory / "memory.limit_in_bytes").strip()
        current = _read(directory / "memory.usage_in_bytes").strip()
        if limit.isdecimal() and current.isdecimal() and int(limit) < NO_LIMIT_V1:
            files = _counted(directory / "memory.stat", "total_inactive_file")
            yield _left(int(limit), int(current) - files), str(directory)


def _memory_mounts() -> Iterator[Path]:
    """Where version 1 has its hierarchy for memory: as the host sees it, since a container sees its
    own cgroup in that place, and as this process does."""
    for pid, prefix in ((1, HOST), (None, "")):
        try:
            for one in mounts.table(pid):
                if one.kind == "cgroup" and "memory" in one.options and one.root == "/":
                    yield Path(f"{prefix}{one.path}")
        except OSError:  # It has no right to look at the first process.
            continue


def _left(limit: int, used: int) -> Bytes:
    """Free bytes under a limit; file pages that the kernel would reclaim first count as free."""
    return Bytes(max(0, limit - max(0, used)))


def _counted(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


def _outwards(root: Path, path: str) -> Iterator[Path]:
    """The cgroup and its parents."""
    if ".." in path.split("/"):
        return
    directory = root / path.lstrip("/")
    yield directory
    while directory != root:
        directory = directory.parent
        yield directory


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
