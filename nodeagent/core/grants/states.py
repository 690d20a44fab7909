"""State machine of a grant, and the complete state of the book.

Beside its state a grant has an owner that lives or not, a region that exists or not, and slots that
are taken or not: it ends when no process can use it any more (`GrantBook._settle`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.ports.ledger import GrantRecord, GrantState
from nodeagent.ports.processes import Process
from nodeagent.units import Nanoseconds, RequestId, SlotIndex


class Signal(StrEnum):
    """Input that moves a grant from state to state."""

    READY = "ready"
    FAILED = "failed"
    RELEASED = "released"
    DESERTED = "deserted"
    """No process can use it any more."""
    REMOVED = "removed"


NEXT: Mapping[tuple[GrantState, Signal], GrantState] = MappingProxyType(
    {
        (GrantState.PREPARING, Signal.READY): GrantState.ACTIVE,
        (GrantState.PREPARING, Signal.FAILED): GrantState.ENDING,
        (GrantState.PREPARING, Signal.RELEASED): GrantState.DRAINING,
        (GrantState.ACTIVE, Signal.RELEASED): GrantState.DRAINING,
        (GrantState.ACTIVE, Signal.DESERTED): GrantState.ENDING,
        (GrantState.DRAINING, Signal.FAILED): GrantState.ENDING,
        (GrantState.DRAINING, Signal.DESERTED): GrantState.ENDING,
        (GrantState.ENDING, Signal.REMOVED): GrantState.ENDED,
    }
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that the book needs, in its own units."""

    burst_ns: Nanoseconds
    inflight_ns: Nanoseconds
    chunk_ns: Nanoseconds
    boot_id: str
    strategy: str = "pack"
    max_waiting: int = 256
    max_grants_per_uid: int = 256
    max_slots_ratio_per_uid: float = 1.0
    managed_beyond: bool = False


@dataclass(slots=True)
class Held:
    """One grant in the book."""

    record: GrantRecord
    owner_alive: bool = True
    region: bool = False
    """True while the region exists."""
    slots: dict[SlotIndex, Process] = field(default_factory=dict)
    request: RequestId | None = None
    """The request that still waits for the answer."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    record: GrantRecord
    owner_alive: bool
    region: bool
    slots: tuple[tuple[SlotIndex, Process], ...]
    request: RequestId | None


@dataclass(frozen=True, slots=True)
class GrantMemory:
    """The complete state of a book."""

    rules: Rules
    gpus: tuple[GpuCapacity, ...]
    grants: tuple[HeldMemory, ...]
    queue: tuple[ev.Asked, ...]
    told: tuple[tuple[RequestId, int, str], ...]
