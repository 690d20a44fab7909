"""What happens to grants, and what is to be done about it: the vocabulary of the grants
reducer.

Both sides are frozen values of plain types, so that a recorded run replays; see
`nodeagent.core.flight`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.ports.clients import GrantAsk, RefusalKind, ResizeAsk
from nodeagent.ports.ledger import ContainerRef, GrantRecord, GrantState
from nodeagent.ports.processes import Process
from nodeagent.ports.regions import DeviceLimits
from nodeagent.units import Bytes, GrantId, RequestId, SlotIndex

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """The GPUs of this node as of now, unhealthy ones included."""

    gpus: tuple[GpuCapacity, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody wants a grant. `grant` is the id it will have; drawn outside, randomness is I/O."""

    request: RequestId
    grant: GrantId
    ask: GrantAsk
    owner: Process
    created_unix_s: float
    may_wait: bool = False
    container: ContainerRef | None = None
    """It is for a container: nobody owns it, it lasts until Released."""
    queued: bool = False
    """A queue controller has decided it."""


@dataclass(frozen=True, slots=True)
class AskEnded:
    """The wait is over: time is up, or the client is gone."""

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
    """A process of the grant registers. `claimed` are slots that tenants took for themselves."""

    grant: GrantId
    process: Process
    wanted: SlotIndex | None = None
    """A slot the process had claimed for itself while the daemon was away."""
    claimed: frozenset[SlotIndex] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotGone:
    """The process in this slot has exited, or became another program."""

    grant: GrantId
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class SlotMissed:
    """The slot could not be given away after all: a tenant had claimed it for itself just then."""

    grant: GrantId
    slot: SlotIndex


@dataclass(frozen=True, slots=True)
class Resized:
    grant: GrantId
    ask: ResizeAsk


@dataclass(frozen=True, slots=True)
class Lent:
    """What a grant that may borrow shall have from now on, on each of its GPUs."""

    grant: GrantId
    memory_bytes: tuple[Bytes, ...]


@dataclass(frozen=True, slots=True)
class PauseSet:
    grant: GrantId
    paused: bool
    lends: bool = False
    """Others may have its share of the time until it goes on, which may then be refused."""


@dataclass(frozen=True, slots=True)
class SpillMoved:
    """A step of its memory's way to the host and back; BEGIN and RETURN are asked for, and may be
    refused, the others have happened."""

    grant: GrantId
    signal: SpillSignal
    at_unix_s: float = 0.0
    bytes: tuple[Bytes, ...] = ()
    """With BEGIN: what it has on each of its GPUs."""


@dataclass(frozen=True, slots=True)
class Released:
    grant: GrantId


@dataclass(frozen=True, slots=True)
class Restored:
    """A grant found in the ledger after a restart, its region taken over."""

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
    """New limits for a live region."""

    grant: GrantId
    limits: tuple[DeviceLimits, ...]


@dataclass(frozen=True, slots=True)
class OwnSlot:
    grant: GrantId
    slot: SlotIndex
    process: Process
    adopted: bool = False
    """The usage in the slot is the process's own and stays."""


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
    """The record of a grant that is over."""
    return dataclasses.replace(record, state=GrantState.ENDED)
