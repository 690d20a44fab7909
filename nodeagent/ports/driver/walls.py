"""The driver's own memory limits, a second wall around a grant: set by cgroup, counted by the
driver, whoever in the cgroup allocates and by whatever way. Drivers have them from release 615 on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from nodeagent.units import Bytes, GpuUuid, GrantId

NO_BYTES: Final = Bytes(0)


@dataclass(frozen=True, slots=True)
class WallOrder:
    """Limits that a cgroup shall have on a card."""

    gpu: GpuUuid
    cgroup: str
    """Full path of its directory."""
    soft_bytes: Bytes = NO_BYTES
    """Guaranteed; 0: nothing."""
    hard_bytes: Bytes | None = None
    """An allocation that would pass it fails; None: no limit."""


@dataclass(frozen=True, slots=True)
class WallReading:
    """What a cgroup has."""

    soft_bytes: Bytes
    hard_bytes: Bytes | None
    used_bytes: Bytes


class WallsUnavailable(Exception):
    """The driver was not asked, or said no; the text says why."""


class DriverWalls(Protocol):
    """The driver, asked in a process of its own that can be killed when it hangs."""

    async def missing(self, gpus: Sequence[GpuUuid]) -> Mapping[GpuUuid, str]:
        """Why these cards have no such limits; one that has them is not in it. Raises
        WallsUnavailable."""

    async def set(self, orders: Sequence[WallOrder]) -> None:
        """In this order; ends with the first that fails. Raises WallsUnavailable."""

    async def read(self, gpu: GpuUuid, cgroups: Sequence[str]) -> list[WallReading | None]:
        """One for each; None: there is no such cgroup. Raises WallsUnavailable."""


class WallStep(StrEnum):
    STANDING = "standing"
    """Limits are set, or just about to be."""
    FALLING = "falling"
    """They are being taken away."""
    SETTLING = "settling"
    """The cgroup went without us: what it had guaranteed is taken from the one around it."""


@dataclass(frozen=True, slots=True)
class WallRow:
    """One (grant, card) as it is remembered: written before the driver is told, dropped after
    nothing of it is left."""

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
    """The cgroup was made by us and goes with the grant."""


class WallRows(Protocol):
    """Outlives the daemon. Its calls raise LedgerLost, LedgerFull."""

    def wall_rows(self) -> list[WallRow]: ...
    def store_wall(self, row: WallRow) -> None: ...
    def drop_wall(self, row: WallRow) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is, as far as walls go."""

    cgroup: str
    """Directory of the cgroup that is its container's own; empty: it is in none."""
    pod_uid: str = ""


class NoCgroup(Exception):
    """A process has, or can have, no cgroup of its own; the text says why."""


class WallPlaces(Protocol):
    """Cgroups of the unified hierarchy."""

    def missing(self) -> str:
        """Why there are none here; empty: there are."""

    def of_container(self, pid: int) -> Place:
        """Raises NoCgroup."""

    def make(self, grant: GrantId, pid: int) -> str:
        """A cgroup for a grant's programs alone, with this process in it; its directory. Raises
        NoCgroup."""

    def exists(self, cgroup: str) -> bool: ...
    def around(self, cgroup: str) -> str:
        """The nearest one around it that is still there; empty: the root alone is."""

    def inside(self, cgroup: str) -> list[str]:
        """Those right in it; empty also where it is gone."""

    def remove(self, cgroup: str) -> bool:
        """Of those we made. False: somebody is in it."""

    def made(self) -> Mapping[GrantId, str]:
        """All that we made."""
