"""Freezes or ends a container: all processes of its cgroup, however many it starts.

Version 2 has a file for each (cgroup.freeze, Linux 5.2; cgroup.kill, 5.14). Version 1's freezer
freezes, and the frozen processes are then killed one by one through pidfds. On a host with both
versions the container may be in either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.processes.cgroups import (
    container_path,
    freezer_path,
    freezer_root,
    text_of,
    unified_path,
    unified_root,
)
from nodeagent.ports.watch import NotPossible

log = logging.getLogger(__name__)

MAX_PASSES: Final = 64
"""Maximum passes over the list of a cgroup's processes. A process with a pending SIGKILL forks no
more, so every pass leaves fewer; the limit is for a kernel that behaves otherwise."""


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """One container's cgroup in one hierarchy."""

    directory: Path
    path: str
    unified: bool

    def hold(self, held: bool) -> None:
        """Freeze or thaw. The kernel completes it, usually at once. Raises OSError."""
        if self.unified:
            self._write("cgroup.freeze", "1" if held else "0")
        else:
            self._write("freezer.state", "FROZEN" if held else "THAWED")

    def end(self) -> None:
        """Kill all processes. Raises OSError, NotPossible."""
        if self.unified and (self.directory / "cgroup.kill").exists():
            self._write("cgroup.kill", "1")
        else:
            self.end_each()

    def end_each(self) -> None:
        """Kill process by process, on kernels without cgroup.kill. Raises OSError."""
        self.hold(True)  # A frozen process does not fork.
        signalled: set[int] = set()
        for _ in range(MAX_PASSES):
            left = self.pids() - signalled
            if not left:
                break
            for pid in left:
                self._end_one(pid)
            signalled |= left
        else:
            log.error("%s: processes are started faster than they can be killed", self.directory)

    def pids(self) -> set[int]:
        """Processes of the cgroup and of all below it."""
        found: set[int] = set()
        for where, _below, _files in os.walk(self.directory):
            with contextlib.suppress(OSError):  # It ended.
                found |= {int(pid) for pid in Path(where, "cgroup.procs").read_text().split()}
        return found - {0}  # 0: the process is in a PID namespace that is not visible here.

    def _end_one(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # It ended.
            handle = os.pidfd_open(pid)
            try:
                # The PID may belong to another process outside the cgroup now.
                text = text_of(pid)
                path = unified_path(text) if self.unified else freezer_path(text)
                if path == self.path or path.startswith(f"{self.path}/"):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)

    def _write(self, name: str, value: str) -> None:
        path = self.directory / name
        with open(path, "w", encoding="ascii", opener=_existing) as file:
            file.write(value)


class CgroupRestrainer:
    def __init__(self, unified: Path | None = None, freezer: Path | None = None) -> None:
        """The arguments replace the places where the host has the hierarchies mounted."""
        self._unified = unified or unified_root()
        self._freezer = freezer or freezer_root()

    def freeze(self, cgroup: str, freezer: str, frozen: bool) -> None:
        self._do(cgroup, freezer, lambda one: one.hold(frozen))

    def kill(self, cgroup: str, freezer: str) -> None:
        def end(one: ContainerCgroup) -> None:
            one.end()
            one.hold(False)  # Version 1 delivers the signal only to thawed processes.

        self._do(cgroup, freezer, end)

    def _do(self, cgroup: str, freezer: str, act: Callable[[ContainerCgroup], None]) -> None:
        one = self._of(cgroup, freezer)
        try:
            act(one)
        except OSError as error:
            raise NotPossible(f"{one.directory}: {error.strerror}") from error

    def _of(self, cgroup: str, freezer: str) -> ContainerCgroup:
        problem = "it is not in a container's own cgroup"
        for root, path, unified in (
            (self._unified, cgroup, True),
            (self._freezer, freezer, False),
        ):
            # Any other cgroup has processes of other containers too.
            if root is None or not path or container_path(path) != path:
                continue
            directory = root / path.strip("/")
            if (directory / ("cgroup.freeze" if unified else "freezer.state")).is_file():
                return ContainerCgroup(directory, path, unified)
            problem = f"{directory} does not exist, or cannot be frozen (requires Linux 5.2)"
        raise NotPossible(problem)


def _existing(path: str, _flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
