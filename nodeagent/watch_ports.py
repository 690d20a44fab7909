"""The world as the watch needs it: facts about processes it derived itself, and ways to hold
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process by /proc's word."""

    pid: int
    starttime_ticks: int
    uid: int
    program: str
    """Its executable as it sees it; empty where it is gone or a kernel thread."""
    cgroup: str
    """Path of its container's own cgroup in the unified hierarchy; empty: it is in none."""
    pod_uid: str
    ancestors: tuple[tuple[int, int], ...]
    """(pid, start time), the parent first."""
    freezer: str = ""
    """The same in version 1's freezer, where the host has it."""


@dataclass(frozen=True, slots=True)
class MappedLibrary:
    device: int
    inode: int
    path: str


class Inspector(Protocol):
    def facts(self, pid: int) -> ProcessFacts | None:
        """None: it is gone."""

    def driver_libraries(self, pid: int) -> tuple[MappedLibrary, ...]:
        """Files called like libcuda.so that it has mapped; none where we may not look."""

    def file_id(self, path: str) -> tuple[int, int] | None:
        """(device, inode) behind a path, links followed."""


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """The kernel's word on a GPU or its driver."""

    action: str
    """add, remove, bind, unbind, change; lost: some events were dropped."""
    kind: str
    """pci or module."""
    name: str
    driver: str


class NotPossible(Exception):
    """This cannot be done to this subject; the text says why."""


class Restrainer(Protocol):
    """Holds or ends whole containers. Paths are those of ProcessFacts; one of the two is enough.
    All raise NotPossible."""

    def freeze(self, cgroup: str, freezer: str, frozen: bool) -> None: ...
    def kill(self, cgroup: str, freezer: str) -> None: ...


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Written, durably, before an act of its own accord."""

    at_unix_s: float
    rule: str
    step: str
    undo: bool
    level: str
    subject: str
    pid: int
    starttime_ticks: int
    grant: str
    evidence: str
    """JSON."""


class AuditLog(Protocol):
    def audit(self, row: AuditRow) -> None:
        """Durable when it returns. Raises LedgerLost, LedgerFull."""

    def audit_rows(self) -> list[AuditRow]:
        """Oldest first; the last thousands."""
