"""The driver's own memory limits, a second wall around a grant: set for a cgroup, and counted by
the driver for every allocation in the cgroup, however it is made. Drivers have them from release
615 on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from nodeagent.units import Bytes, GpuUuid, GrantId

NO_BYTES: Final = Bytes(0)


@dataclass(frozen=True, slots=True)
class WallOrder:
    """Limits to set for a cgroup on a card."""

    gpu: GpuUuid
    cgroup: str
    """Full path of its directory."""
    soft_bytes: Bytes = NO_BYTES
    """Guaranteed memory; 0: none."""
    hard_bytes: Bytes | None = None
    """An allocation that would exceed it fails; None: no limit."""


@dataclass(frozen=True, slots=True)
class WallReading:
    """Limits and use of a cgroup."""

    soft_bytes: Bytes
    hard_bytes: Bytes | None
    used_bytes: Bytes


class WallsUnavailable(Exception):
    """The driver could not be called, or refused; the text has the reason."""


class DriverWalls(Protocol):
    """The driver's memory limits, set in a separate process that can be killed when it hangs."""

    async def missing(self, gpus: Sequence[GpuUuid]) -> Mapping[GpuUuid, str]:
        """The reason why a card has no such limits, for each card without them. Raises
        WallsUnavailable."""

    async def set(self, orders: Sequence[WallOrder]) -> None:
        """Set the limits in this order, up to the first that fails. Raises WallsUnavailable."""

    async def read(self, gpu: GpuUuid, cgroups: Sequence[str]) -> list[WallReading | None]:
        """Limits of each cgroup; None for one that does not exist. Raises WallsUnavailable."""


class WallStep(StrEnum):
    STANDING = "standing"
    """The limits are set, or about to be."""
    FALLING = "falling"
    """The limits are being removed."""
    SETTLING = "settling"
    """The cgroup was removed before its limits: its guaranteed part is taken from the cgroup around
    it."""


@dataclass(frozen=True, slots=True)
class WallRow:
    """Ledger row of one grant on one card: written before the driver is called, dropped when
    nothing of the limit is left."""

    grant: GrantId
    gpu: GpuUuid
    cgroup: str
    soft_bytes: Bytes
    hard_bytes: Bytes
    step: WallStep = WallStep.STANDING
    around: str = ""
    """While it settles: the nearest cgroup that is left, and its soft limit before and after."""
    before_bytes: Bytes = NO_BYTES
    after_bytes: Bytes = NO_BYTES
    most_bytes: Bytes = NO_BYTES
    """The highest soft limit that may have been set so far."""
    ours: bool = False
    """True if we created the cgroup, so that it is removed with the grant."""


class WallRows(Protocol):
    """Rows that outlive the daemon. All calls raise LedgerLost or LedgerFull."""

    def wall_rows(self) -> list[WallRow]: ...
    def store_wall(self, row: WallRow) -> None: ...
    def drop_wall(self, row: WallRow) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Cgroup of a process, as far as driver limits need it."""

    cgroup: str
    """Directory of its container's own cgroup; empty: it has none."""
    pod_uid: str = ""


class NoCgroup(Exception):
    """A process has no cgroup of its own and cannot get one; the text has the reason."""


class WallPlaces(Protocol):
    """Cgroups of the unified hierarchy (cgroup v2)."""

    def missing(self) -> str:
        """The reason why this host has no such cgroups; empty if it has."""

    def of_container(self, pid: int) -> Place:
        """Cgroup of a process's container. Raises NoCgroup."""

    def make(self, grant: GrantId, pid: int) -> str:
        """Create a cgroup for a grant's programs alone, move this process into it, and return its
        directory. Raises NoCgroup."""

    def exists(self, cgroup: str) -> bool: ...
    def around(self, cgroup: str) -> str:
        """The nearest cgroup around it that still exists; empty if only the root does."""

    def inside(self, cgroup: str) -> list[str]:
        """Its direct children; empty also if it is gone."""

    def remove(self, cgroup: str) -> bool:
        """Remove a cgroup that we created. False if a process is still in it."""

    def made(self) -> Mapping[GrantId, str]:
        """All cgroups that we created."""
