"""Events and instructions of the grants reducer.

Both are frozen values of plain types, so that a recorded run can be replayed; see
`nodeagent.core.flight`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.ports.clients import GrantAsk, RefusalKind, ResizeAsk
from nodeagent.ports.ledger import ContainerRef, GrantRecord, GrantState
from nodeagent.ports.processes import Process
from nodeagent.ports.regions import DeviceLimits
from nodeagent.units import Bytes, GpuUuid, GrantId, RequestId, SlotIndex

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """The GPUs of this node now, unhealthy ones included."""

    gpus: tuple[GpuCapacity, ...]
    unread: Mapping[GpuUuid, str] = field(default_factory=dict)
    """Cards that are there and were never read, with the model and NVML's reason."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a grant. `grant` is the id that it will have; it is drawn outside, because
    randomness is I/O."""

    request: RequestId
    grant: GrantId
    ask: GrantAsk
    owner: Process
    created_unix_s: float
    may_wait: bool = False
    container: ContainerRef | None = None
    """Set for a container's grant: it has no owner process and lasts until Released."""
    queued: bool = False
    """True if a queue controller has decided it."""


@dataclass(frozen=True, slots=True)
class AskEnded:
    """The wait is over: it timed out, or the client is gone."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class RegionReady:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class RegionFailed:
    grant: GrantId
    reason: str


@dataclass(frozen=True, slots=True)
class RegionRemoved:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class OwnerGone:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class SlotAsked:
    """A process of the grant registers. `claimed` has the slots that tenants claimed by
    themselves."""

    grant: GrantId
    process: Process
    wanted: SlotIndex | None = None
    """Slot that the process had claimed by itself while the daemon was away."""
    claimed: frozenset[SlotIndex] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotGone:
    """The process in this slot has exited, or executed another program."""

    grant: GrantId
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class SlotMissed:
    """The slot could not be assigned after all, because a tenant had just claimed it by itself."""

    grant: GrantId
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class Resized:
    grant: GrantId
    ask: ResizeAsk


@dataclass(frozen=True, slots=True)
class Lent:
    """New memory of a grant that may borrow, on each of its GPUs."""

    grant: GrantId
    memory_bytes: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True)
class PauseSet:
    grant: GrantId
    paused: bool
    lends: bool = False
    """True if other grants may use its share of time while it is paused; resuming may then be
    refused."""


@dataclass(frozen=True, slots=True)
class SpillMoved:
    """A step of a spill or return. BEGIN and RETURN are requests and may be refused; the others
    report what happened."""

    grant: GrantId
    signal: SpillSignal
    at_unix_s: float = 0.0
    bytes: tuple[Bytes, ...] = ()
    """The grant's memory on each of its GPUs, with signal BEGIN only."""


@dataclass(frozen=True, slots=True)
class Released:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class Restored:
    """A grant found in the ledger after a restart; its region was taken over."""

    record: GrantRecord
    owner_alive: bool
    slots: tuple[tuple[SlotIndex, Process], ...]


Event = (
    GpusSeen
    | Asked
    | AskEnded
    | RegionReady
    | RegionFailed
    | RegionRemoved
    | OwnerGone
    | SlotAsked
    | SlotGone
    | SlotMissed
    | Resized
    | Lent
    | PauseSet
    | SpillMoved
    | Released
    | Restored
)

# --- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """Make the record durable before carrying out what follows."""

    record: GrantRecord


@dataclass(frozen=True, slots=True)
class MakeRegion:
    """Answered by RegionReady or RegionFailed."""

    record: GrantRecord
    limits: tuple[DeviceLimits, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Write new limits to a live region."""

    grant: GrantId
    limits: tuple[DeviceLimits, ...]


@dataclass(frozen=True, slots=True)
class OwnSlot:
    grant: GrantId
    slot: SlotIndex
    process: Process
    adopted: bool = False
    """True if the usage in the slot is the process's own and stays."""


@dataclass(frozen=True, slots=True)
class RefuseSlot:
    grant: GrantId
    error: int


@dataclass(frozen=True, slots=True)
class ClearSlot:
    grant: GrantId
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class RemoveRegion:
    """Answered by RegionRemoved."""

    grant: GrantId


@dataclass(frozen=True, slots=True)
class TellGranted:
    request: RequestId
    grant: GrantId


@dataclass(frozen=True, slots=True)
class TellWaiting:
    request: RequestId
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class TellRefused:
    request: RequestId
    kind: RefusalKind
    reason: str


Instruction = (
    Store
    | MakeRegion
    | Publish
    | OwnSlot
    | RefuseSlot
    | ClearSlot
    | RemoveRegion
    | TellGranted
    | TellWaiting
    | TellRefused
)


def ended(record: GrantRecord) -> GrantRecord:
    """The record of a grant that has ended."""
    return dataclasses.replace(record, state=GrantState.ENDED)
