"""Processes of this host, each by an identity that no other can take over, and the port to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nodeagent.units import (
    GrantId,
    SlotIndex,
)


@dataclass(frozen=True, slots=True)
class Process:
    """One process for ever: a pid alone is reused, a pid with its start time is not."""

    pid: int
    starttime_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""
    uid: int
    gid: int
    ns_pid: int = 0
    """As the process sees itself in its own pid namespace; shown to people only."""


class ProcessHandle(Protocol):
    """Keeps one process identified (a pidfd), whatever becomes of its pid."""

    @property
    def process(self) -> Process: ...
    def alive(self) -> bool: ...
    def on_exit(self, call: Callable[[], None]) -> None:
        """Call once when the process has exited; at once if it already has."""

    def signal(self, number: int) -> bool:
        """Send it a signal; False when it is gone, or not ours to signal."""

    def duplicate(self) -> ProcessHandle: ...
    def close(self) -> None: ...


class Processes(Protocol):
    def find(self, pid: int, starttime_ticks: int) -> ProcessHandle | None:
        """The process, or None when it is gone or another one has its pid. Raises OSError when that
        cannot be told: no file descriptor is left."""

    def find_claimants(
        self, claims: Mapping[SlotIndex, tuple[int, int]]
    ) -> dict[SlotIndex, ProcessHandle]:
        """Who claimed these slots: (pid as the process knows itself, start time in ticks), both
        as a tenant wrote them. Claims with nobody behind them are absent. Costs at most one
        pass over /proc."""

    def users_of(self, grant: GrantId, uid: int, pod_uid: str) -> list[ProcessHandle]:
        """Who has a region of this grant mapped whose files may be gone: processes of the user,
        or of the pod where one is named. Costs one pass over /proc."""

    def maps_file(self, pid: int, device: int, inode: int) -> bool | None:
        """Has this process the file mapped? None: may not look."""

    def image_of(self, pid: int) -> int:
        """A number that another program in the same process has differently. 0: not known."""


@dataclass(frozen=True, slots=True)
class LibraryIdentity:
    """One file for ever, as far as a file system tells: inodes are used again, so there is more to
    it than a number."""

    device: int
    inode: int
    generation: int
    """FS_IOC_GETVERSION: another one each time the inode is used; 0: this file system has none."""
    size_bytes: int
    modified_ns: int
    uid: int
