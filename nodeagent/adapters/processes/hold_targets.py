"""State of the targets of holds, if they still exist: cgroups by their inodes, processes by their
state, refusals by their pins.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from nodeagent.adapters.processes.cgroups import freezer_root, unified_root


class Pins(Protocol):
    """Pins of the programs that refuse opens of GPUs, by cgroup."""

    def refused(self) -> frozenset[int]: ...

    def allow(self, cgroup_id: int) -> None: ...


class SystemTargets:
    def __init__(
        self, pins: Pins, unified: Path | None = None, freezer: Path | None = None
    ) -> None:
        """The roots replace the places where the host has the hierarchies mounted."""
        self._pins = pins
        self._unified = unified or unified_root()
        self._freezer = freezer or freezer_root()

    def cgroup_ids(self, cgroup: str, freezer: str) -> tuple[int, int]:
        return _inode(self._unified, cgroup), _inode(self._freezer, freezer)

    def is_frozen(self, cgroup: str, freezer: str) -> bool:
        # The same choice as in cgroup_hold.py: version 2 if it can freeze, otherwise version 1.
        for root, path, name in (
            (self._unified, cgroup, "cgroup.freeze"),
            (self._freezer, freezer, "freezer.self_freezing"),
        ):
            if root is not None and path:
                with contextlib.suppress(OSError):
                    return (root / path.strip("/") / name).read_text().strip() == "1"
        return False

    def is_stopped(self, pid: int) -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[:1] == [b"T"]

    def refused(self) -> frozenset[int]:
        return self._pins.refused()

    def allow(self, cgroup_id: int) -> None:
        self._pins.allow(cgroup_id)


def _inode(root: Path | None, path: str) -> int:
    if root is None or not path:
        return 0
    try:
        return os.stat(root / path.strip("/")).st_ino
    except OSError:
        return 0
