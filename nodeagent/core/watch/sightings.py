"""Observations of the GPU's users at one moment: the input of the detection rules.

The daemon derived everything here itself (NVML, /proc, the kernel watch, its own list of registered
processes), except the figures of GrantSight, which are a tenant's verified accounts.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.units import GpuUuid, GrantId, Nanoseconds


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a suspicion: one process, or a whole grant (pid 0)."""

    grant: GrantId | None = None
    pid: int = 0
    starttime_ticks: int = 0
    uid: int = 0
    program: str = ""
    """Path of the executable as the kernel has it; for a grant its name."""
    cgroup: str = ""
    """The container's own cgroup in the unified hierarchy."""
    freezer: str = ""
    """The container's cgroup in version 1's freezer."""
    pod_uid: str = ""
    namespace: str = ""
    queue: str = ""

    @property
    def key(self) -> str:
        return f"{self.pid}:{self.starttime_ticks}" if self.pid else f"grant:{self.grant}"

    @property
    def container(self) -> str:
        """Identity of its container; empty if there is none to hold."""
        return (self.cgroup or self.freezer) if self.pod_uid else ""

    def __str__(self) -> str:
        whole = f"grant {self.grant}" if self.grant is not None else "no grant"
        if not self.pid:
            return f"{whole} ({self.program})" if self.program else whole
        return f"pid {self.pid} ({self.program or '?'}, uid {self.uid}, {whole})"


@dataclass(frozen=True, slots=True)
class GpuUser:
    """One process on NVML's list."""

    subject: Subject
    gpu: GpuUuid
    registered: bool
    """True if it holds a slot of a grant."""
    exempt: bool = False
    """True for the node's own tools, by configuration."""
    memory_bytes: int | None = None
    sm_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GrantSight:
    """One grant on one GPU, by its own accounts."""

    subject: Subject
    grant: GrantId
    gpu: GpuUuid
    charged_bytes: int
    consumed_ns: int
    completed_ns: int
    outstanding_ns: int
    tampers: int
    """Impossible values so far."""
    hooks: tuple[tuple[int, int, int, int, int], ...] = ()
    """(pid, mask of installed hook groups, unknown symbols, unknown export tables returned,
    records that the driver refused)."""
    beyond: bool = False
    """True if its charge is at its limit and managed memory may lie beyond it, so that NVML's
    figure proves nothing."""


@dataclass(frozen=True, slots=True)
class DeviceOpen:
    subject: Subject
    major: int
    minor: int
    access: str
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class ForeignMapping:
    subject: Subject
    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class LaunchAudit:
    """One process in one audit window."""

    subject: Subject
    driver: int
    shim: int


@dataclass(frozen=True, slots=True)
class Look:
    at_ns: Nanoseconds
    users: tuple[GpuUser, ...] = ()
    grants: tuple[GrantSight, ...] = ()
    opens: tuple[DeviceOpen, ...] = ()
    """Opens since the last look."""
    foreign: tuple[ForeignMapping, ...] = ()
    audits: tuple[LaunchAudit, ...] = ()
    """Windows since the last look."""
