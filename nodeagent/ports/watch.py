"""Ports of the watch: facts about processes, which it reads itself, and ways to restrain them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodeagent.ports.processes import LibraryIdentity


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts about one process from /proc."""

    pid: int
    starttime_ticks: int
    uid: int
    program: str
    """Its executable as the process sees it; empty if it is gone or a kernel thread."""
    cgroup: str
    """Path of its container's own cgroup in the unified hierarchy; empty: it has none."""
    pod_uid: str
    ancestors: tuple[tuple[int, int], ...]
    """(Pid, start time), the parent first."""
    freezer: str = ""
    """Path of that cgroup in version 1's freezer, if the host has it."""


@dataclass(frozen=True, slots=True)
class MappedLibrary:
    device: int
    inode: int
    path: str
    through: str = ""
    """A path to this very file, even if its name was reused."""


class Inspector(Protocol):
    def facts(self, pid: int) -> ProcessFacts | None:
        """Facts about a process; None if it has ended."""

    def driver_libraries(self, pid: int) -> tuple[MappedLibrary, ...]:
        """Files named like libcuda.so that it has mapped; empty if it may not be inspected."""

    def file_id(self, path: str) -> tuple[int, int] | None:
        """(Device, inode) of a path, links followed."""

    def identity(self, path: str) -> LibraryIdentity | None:
        """The complete identity; None if it is gone, or may not be read."""


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """A change of a GPU or its driver, from the kernel."""

    action: str
    """add, remove, bind, unbind, change; lost: some events were dropped."""
    kind: str
    """pci or module."""
    name: str
    driver: str


class NotPossible(Exception):
    """The step is impossible for this subject; the text has the reason."""


class Restrainer(Protocol):
    """Freezes or kills whole containers. Paths are those of ProcessFacts; one of the two is enough.
    All calls raise NotPossible."""

    def freeze(self, cgroup: str, freezer: str, frozen: bool) -> None: ...
    def kill(self, cgroup: str, freezer: str) -> None: ...


@dataclass(frozen=True, slots=True)
class AuditRow:
    """Written, durably, before an act that the daemon takes by itself, or that a person requests
    for the whole node."""

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
        """Durable when it returns. Raises LedgerLost or LedgerFull."""

    def audit_rows(self, rule: str = "") -> list[AuditRow]:
        """The last thousands of rows, oldest first; of one rule if it is given."""


@dataclass(frozen=True, slots=True)
class Hold:
    """An act that can be undone and has not been: written before the act and dropped after it was
    undone, so that a restarted daemon knows of it."""

    number: int
    """Number shown to people; 0 until it is written."""
    since_unix_s: float
    step: str
    holder: str
    """Target of the act: core.response.held()."""
    rule: str
    cause: str
    """Which case of the subject: the last part of the alarm's key."""
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
    """Inodes of the two cgroups at the time of the act, because a path may be another container's
    later. 0: none."""
    freezer_id: int
    stopped: tuple[tuple[int, int], ...] = ()
    """(Pid, start time) of the processes that were stopped one by one."""
    done: bool = False
    """False: the daemon may have ended before the act."""


class HoldLog(Protocol):
    """The ledger's acts in force of this boot; no act outlives a boot. All calls raise LedgerLost,
    and those that write also LedgerFull."""

    def holds(self) -> list[Hold]:
        """Oldest first."""

    def store_hold(self, hold: Hold) -> Hold:
        """Durable when it returns; the result has its number."""

    def drop_hold(self, number: int) -> None: ...


class DriverLog(Protocol):
    """The ledger's driver libraries of this boot; no process outlives a boot. Both calls raise
    LedgerLost."""

    def driver_files(self) -> list[LibraryIdentity]: ...
    def store_driver_file(self, identity: LibraryIdentity) -> None:
        """Idempotent. Raises LedgerFull."""


class WatchLedger(AuditLog, HoldLog, Protocol):
    """The ledger tables that the watch writes."""


class Targets(Protocol):
    """Checks whether a target still exists and is held."""

    def cgroup_ids(self, cgroup: str, freezer: str) -> tuple[int, int]:
        """Inodes in the unified hierarchy and in version 1's freezer; 0: it is gone."""

    def is_frozen(self, cgroup: str, freezer: str) -> bool: ...
    def is_stopped(self, pid: int) -> bool:
        """True if a signal has stopped it."""

    def refused(self) -> frozenset[int]:
        """Inodes of cgroups whose opens of GPU devices are refused by a program that outlives its
        daemon."""

    def allow(self, cgroup_id: int) -> None:
        """Allow opens again, with or without a running eBPF child. Raises NotPossible."""
