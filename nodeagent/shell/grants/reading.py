"""Read access to grants for every part except the keeper. `Held` is the book's state of a grant,
`Open` its region and pidfds while it has them; the two need not exist at the same time. Both belong
to the keeper and are mutable: a caller that keeps something takes the frozen record.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from nodeagent.core.grants.placement import Load
from nodeagent.core.grants.states import Held
from nodeagent.core.grants.usage import GrantAccount
from nodeagent.ports.processes import Process, ProcessHandle
from nodeagent.ports.regions import Region, UsageImage
from nodeagent.units import GpuUuid, GrantId, SlotIndex


@dataclass(slots=True)
class Tenant:
    """One registered process."""

    handle: ProcessHandle
    generation: int
    image: int
    """Identity of the program that registered; see Processes.image_of."""


@dataclass(slots=True)
class Open:
    """The region and processes of a grant, which must be closed when it ends."""

    region: Region
    account: GrantAccount
    tenants: dict[SlotIndex, Tenant] = field(default_factory=dict)
    refused: bool = False
    """True if a refused registration was logged."""
    image: UsageImage | None = None
    """The last reading of its usage page, not validated."""
    lost: bool = False
    """True if its files are gone while processes have them mapped, so that its usage is unknown."""
    half_claims: set[SlotIndex] = field(default_factory=set)
    """Claims seen without a start time: their owner may be between two stores."""


class Grants(Protocol):
    def grant(self, grant: GrantId | None) -> Held | None:
        """The grant; None if there is none, or none any more."""

    def live(self) -> Mapping[GrantId, Held]:
        """All that have not ended, oldest first."""

    def opened(self, grant: GrantId | None) -> Open | None:
        """The open region of a grant; None if it has none yet, or none any more."""

    def opens(self) -> Mapping[GrantId, Open]:
        """All with a region."""

    def tenants(self, grant: GrantId) -> Collection[Tenant]:
        """Its registered processes."""

    def loads(self) -> Mapping[GpuUuid, Load]:
        """Load of each GPU: what grants hold of it."""

    def waiting(self) -> int:
        """Requests in line."""

    def grant_of(self, pid: int) -> GrantId | None:
        """The grant in which a process is registered."""

    def tenant_pids(self) -> set[int]:
        """Process ids of all registered tenants."""

    def processes_of(self, grant: GrantId) -> list[Process]:
        """Registered ones, and its owner."""

    @property
    def managed_beyond(self) -> bool:
        """Managed memory may be larger than the limit."""

    @property
    def short(self) -> bool:
        """Processes may be registered that could not be taken in yet."""
