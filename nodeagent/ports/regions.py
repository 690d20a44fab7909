"""A grant's shared pages: values that the daemon writes, values that tenants write, and the port to
both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Protocol

from nodeagent.ports.ledger import GrantRecord
from nodeagent.ports.processes import Process
from nodeagent.units import (
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    Ppm,
    SlotIndex,
)

USAGE_FILE: Final = "usage.shm"
"""File that tenants write, in the region's directory."""
NO_PPM: Final = Ppm(0)
NO_TIME: Final = Nanoseconds(0)
FIRST_SLOT: Final = SlotIndex(0)


class TurnMode(IntEnum):
    """enum sluice_turn_mode."""

    OFF = 0
    CAP = 1
    LEASE = 2


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Line A of a device in policy.shm."""

    gpu: GpuUuid
    memory_limit_bytes: Bytes
    physical_bytes: Bytes
    burst_ns: Nanoseconds
    inflight_ns: Nanoseconds
    chunk_ns: Nanoseconds
    share_ppm: Ppm
    """0 means uncapped."""
    enforce_memory: bool = True
    enforce_sm: bool = True
    paused: bool = False
    revoked: bool = False
    managed_beyond: bool = False
    """True if managed memory may be larger than what is left of the grant; docs/node/memory.md says
    what that promises."""
    spilled: bool = False
    """True if its memory is on the host, or being moved there or back."""


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """Line B of a device in policy.shm."""

    mode: TurnMode
    plan_ppm: Ppm = NO_PPM
    active_grants: int = 0
    lease_origin_ns: Nanoseconds = NO_TIME
    lease_period_ns: Nanoseconds = NO_TIME
    lease_quantum_ns: Nanoseconds = NO_TIME
    contention_epoch: int = 0
    switch_ns: Nanoseconds = NO_TIME
    """Time for which nothing runs at the start of a window."""


@dataclass(frozen=True, slots=True)
class SlotOwner:
    """One odd entry of policy.dir[]: written by the daemon, so trusted."""

    slot: SlotIndex
    generation: int
    pid: int
    starttime_ticks: int
    ns_pid: int


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """One usage line, exactly as a tenant wrote it: unsigned 64-bit words, not verified yet."""

    charged_bytes: int = 0
    consumed_ns: int = 0
    completed_ns: int = 0
    launches: int = 0
    allocs: int = 0
    denied: int = 0
    peak_bytes: int = 0
    throttled_ns: int = 0


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """One usage slot, exactly as a tenant wrote it."""

    generation_seen: int
    heartbeat_ns: int
    hook_mask: int
    unknown_symbols: int
    unknown_tables: int
    failed_records: int
    self_claim: int
    claim_starttime: int
    devices: tuple[DeviceCounters, ...]
    waiting: int | None = None
    """Threads at the gate; None: an older guest, which does not count them."""


class UsageDamage(StrEnum):
    """Damage that a tenant did to usage.shm as a whole."""

    TRUNCATED = "truncated"
    HEADER = "header"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class UsageImage:
    """One reading of usage.shm: the requested slots, or the damage of the file."""

    slots: Mapping[SlotIndex, SlotUsage]
    claim_high: int = 0
    """Self-claimed slots lie below; already limited to the slot count."""
    damage: UsageDamage | None = None
    switches_ns: tuple[int, ...] = ()
    """For each device: time of a change of contexts as the tenants say; 0 = not measured."""


class RegionDamaged(Exception):
    """A region that is not, or no longer, one of ours: version, boot or content differs."""


class SlotClaimed(Exception):
    """A tenant claimed the slot while it was being assigned."""


class Region(Protocol):
    """One grant's region. The daemon is its only writer, except for the tenant's usage words."""

    @property
    def directory(self) -> str: ...
    def set_limits(self, device: int, limits: DeviceLimits) -> None: ...
    def set_turn(self, device: int, turn: DeviceTurn, wake: bool) -> None: ...
    def heartbeat(self, now_ns: Nanoseconds) -> None: ...
    def set_population(self, live_slots: int, slot_high: int) -> None: ...
    def own_slot(self, slot: SlotIndex, process: Process, adopted: bool = False) -> int:
        """Publish the owner and return the odd generation.

        The slot's usage must be zero; if `adopted`, it is the process's own and only the claim word
        is cleared. Raises SlotClaimed.
        """

    def clear_slot(self, slot: SlotIndex) -> None:
        """Zero the slot's usage, then mark it free."""

    def owners(self) -> list[SlotOwner]: ...
    def read_usage(self, slots: Sequence[SlotIndex]) -> UsageImage: ...
    def self_claims(self) -> dict[SlotIndex, tuple[int, int]]:
        """Slots claimed without the daemon: (pid in the process's own namespace, start time in
        ticks)."""

    def image_in(self, slot: SlotIndex) -> int:
        """Program that the slot's process ran when it took the slot, in the form of
        Processes.image_of; written by the tenant. 0: not set."""

    def drop_claim(self, slot: SlotIndex) -> None:
        """Zero the whole slot, because the process that claimed it is gone."""

    def repair_usage(self) -> None:
        """Restore the size and header of a truncated usage.shm."""

    def usage_file(self) -> tuple[int, int]:
        """(Device, inode) of usage.shm, to find it among a process's mappings."""

    def close(self) -> None: ...


class RegionStore(Protocol):
    """Creates, finds and removes region directories."""

    def create(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region: ...
    def open(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region:
        """Take over a region after a restart. Raises RegionDamaged."""

    def remove(self, grant: GrantId) -> None:
        """Idempotent; a region that does not exist counts as removed."""

    def present(self) -> list[GrantId]: ...
    def write_record(self, record: GrantRecord) -> None: ...
    def read_record(self, grant: GrantId) -> GrantRecord | None:
        """The copy of the ledger row beside the region, for a ledger that was lost."""
