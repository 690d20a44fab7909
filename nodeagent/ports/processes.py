"""Processes of this host, each with an identity that is never reused, and the port to them."""

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
    """One process, identified for ever: a pid alone is reused, a pid with its start time is not."""

    pid: int
    starttime_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""
    uid: int
    gid: int
    ns_pid: int = 0
    """Its pid in its own pid namespace; shown to people only."""


class ProcessHandle(Protocol):
    """Keeps one process identified (a pidfd), even if its pid is reused."""

    @property
    def process(self) -> Process: ...
    def alive(self) -> bool: ...
    def on_exit(self, call: Callable[[], None]) -> None:
        """Call `call` once when the process has exited; at once if it already has."""

    def signal(self, number: int) -> bool:
        """Send it a signal; False if it is gone, or not ours to signal."""

    def duplicate(self) -> ProcessHandle: ...
    def close(self) -> None: ...


class Processes(Protocol):
    def find(self, pid: int, starttime_ticks: int) -> ProcessHandle | None:
        """The process, or None if it is gone or another one has its pid. Raises OSError if that
        cannot be determined, because no file descriptor is left."""

    def find_claimants(
        self, claims: Mapping[SlotIndex, tuple[int, int]]
    ) -> dict[SlotIndex, ProcessHandle]:
        """Processes that claimed these slots. Each claim is (pid in the process's own namespace,
        start time in ticks), as a tenant wrote it.

        Claims without a process are absent. Costs at most one pass over /proc.
        """

    def users_of(self, grant: GrantId, uid: int, pod_uid: str) -> list[ProcessHandle]:
        """Processes that have a region of this grant mapped whose files may be gone: processes of
        the user, or of the pod if one is given. Costs one pass over /proc."""

    def maps_file(self, pid: int, device: int, inode: int) -> bool | None:
        """True if this process has the file mapped; None if it may not be inspected."""

    def image_of(self, pid: int) -> int:
        """A number that differs for another program in the same process; 0: unknown."""


@dataclass(frozen=True, slots=True)
class LibraryIdentity:
    """Identity of one file, as far as a file system can tell: inodes are reused, so the number
    alone is not enough."""

    device: int
    inode: int
    generation: int
    """FS_IOC_GETVERSION: differs each time the inode is reused; 0: this file system has none."""
    size_bytes: int
    modified_ns: int
    uid: int
