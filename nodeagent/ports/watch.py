"""The world as the watch needs it: facts about processes it derived itself, and ways to hold
them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodeagent.ports.processes import LibraryIdentity


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
    through: str = ""
    """A path to the very file, whatever became of its name."""


class Inspector(Protocol):
    def facts(self, pid: int) -> ProcessFacts | None:
        """None: it is gone."""

    def driver_libraries(self, pid: int) -> tuple[MappedLibrary, ...]:
        """Files called like libcuda.so that it has mapped; none where we may not look."""

    def file_id(self, path: str) -> tuple[int, int] | None:
        """(device, inode) behind a path, links followed."""

    def identity(self, path: str) -> LibraryIdentity | None:
        """More of it; None: it is gone, or we may not look."""


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
    """Written, durably, before an act of its own accord, or one that a person asks of the whole
    node."""

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

    def audit_rows(self, rule: str = "") -> list[AuditRow]:
        """Oldest first; the last thousands, of one rule where it is named."""


@dataclass(frozen=True, slots=True)
class Hold:
    """An act that can be taken back and was not yet: written before the act, dropped after it was
    undone, so that a daemon that died in between is followed by one that knows."""

    number: int
    """What people call it; 0 until it is written."""
    since_unix_s: float
    step: str
    holder: str
    """What is held: core.response.held()."""
    rule: str
    cause: str
    """What about the subject: the last part of the alarm's key."""
    level: str
    evidence: str
    """JSON."""
    grant: str
    """Empty: none."""
    pid: int
    starttime_ticks: int
    uid: int
    program: str
    cgroup: str
    freezer: str
    pod_uid: str
    namespace: str
    queue: str
    cgroup_id: int
    """Inodes of the two cgroups when it was done: a path may be another container's later. 0: it
    has none."""
    freezer_id: int
    stopped: tuple[tuple[int, int], ...] = ()
    """(pid, start time) of those that were stopped one by one."""
    done: bool = False
    """False: the daemon may have died before it did it."""


class HoldLog(Protocol):
    """The ledger's list of acts in force, of this boot: no other outlives one. All raise
    LedgerLost, and those that write LedgerFull."""

    def holds(self) -> list[Hold]:
        """Oldest first."""

    def store_hold(self, hold: Hold) -> Hold:
        """Durable when it returns; the answer has its number."""

    def drop_hold(self, number: int) -> None: ...


class DriverLog(Protocol):
    """The ledger's list of driver libraries, of this boot: no process outlives one. Both raise
    LedgerLost."""

    def driver_files(self) -> list[LibraryIdentity]: ...
    def store_driver_file(self, identity: LibraryIdentity) -> None:
        """Idempotent. Raises LedgerFull."""


class WatchLedger(AuditLog, HoldLog, Protocol):
    """What the watch writes down."""


class Targets(Protocol):
    """Whether what was held still is there, and held."""

    def cgroup_ids(self, cgroup: str, freezer: str) -> tuple[int, int]:
        """Inodes, in the unified hierarchy and in version 1's freezer; 0: it is gone."""

    def is_frozen(self, cgroup: str, freezer: str) -> bool: ...
    def is_stopped(self, pid: int) -> bool:
        """By a signal."""

    def refused(self) -> frozenset[int]:
        """Inodes of cgroups whose opens of GPU devices are refused by a program that outlives its
        daemon."""

    def allow(self, cgroup_id: int) -> None:
        """Take that back, with or without a running eBPF child. Raises NotPossible."""
