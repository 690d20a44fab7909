"""What outlives the daemon: grants as they are kept, and the port to where they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nodeagent.ports.processes import Process
from nodeagent.units import (
    NO_CEILING,
    Bytes,
    GpuUuid,
    GrantId,
    Ppm,
    SharePolicy,
)


class GrantState(StrEnum):
    PREPARING = "preparing"
    """Intent written, region not made yet."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Released: nothing new may start, registered processes are still there."""
    ENDING = "ending"
    """Nobody is left; the region is being removed."""
    ENDED = "ended"


class Spill(StrEnum):
    """Where a grant's device memory is."""

    RESIDENT = "resident"
    """On its GPUs, as ever."""
    SPILLING = "spilling"
    """Being written to the host's memory; its room on the GPUs is its own still."""
    SPILLED = "spilled"
    """In the host's memory; its room on the GPUs is whoever's asks."""
    RETURNING = "returning"
    """Its room is its own again, and what was spilled is being brought back."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a grant holds on one GPU."""

    gpu: GpuUuid
    memory_bytes: Bytes
    physical_bytes: Bytes
    share_ppm: Ppm
    request_bytes: Bytes | None = None
    """Of memory_bytes, what is its own whatever others do; the rest is borrowed. None: all."""
    limit_bytes: Bytes | None = None
    """The most it may have with what it borrows; memory_bytes moves between the two. None: it
    borrows nothing."""

    @property
    def most_bytes(self) -> Bytes:
        return self.memory_bytes if self.limit_bytes is None else self.limit_bytes

    @property
    def guaranteed_bytes(self) -> Bytes:
        return self.memory_bytes if self.request_bytes is None else self.request_bytes


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """The container a grant was made for, by the kubelet's word; or the claim."""

    pod_uid: str
    container: str
    device_ids: tuple[str, ...]
    """The kubelet's, sorted: what it counts, not where the grant is."""
    namespace: str = ""
    pod: str = ""
    claim: str = ""
    """UID of the ResourceClaim it was made for, whichever containers use it; empty: none."""
    nonce: str = ""
    """Of a claim: what its CDI file is named by."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One grant as the ledger keeps it."""

    grant: GrantId
    name: str
    policy: SharePolicy
    devices: tuple[DeviceShare, ...]
    owner: Process
    created_unix_s: float
    boot_id: str
    state: GrantState = GrantState.PREPARING
    paused: bool = False
    lent: bool = False
    """Paused, and its share of the time given to others meanwhile; its memory is not."""
    driver_path: str = ""
    nvml_path: str = ""
    command: str = ""
    priority: int = 0
    """A higher one goes first on a GPU both are active on."""
    ceiling_ppm: Ppm = NO_CEILING
    """Of an elastic grant: never above it, also while alone. 0: no such bound."""
    container: ContainerRef | None = None
    """Held for a container until it is released; `owner` is then nobody."""
    spill: Spill = Spill.RESIDENT
    spilled_unix_s: float = 0.0
    """Since when it is spilled."""
    spilled_bytes: tuple[Bytes, ...] = ()
    """What of each GPU it took with it, as measured when it began; empty: it is resident."""


class LedgerLost(Exception):
    """The ledger could not be made durable. Retrying is wrong: after a failed fsync Linux drops
    the dirty pages."""


class LedgerFull(Exception):
    """No space left: the row was not written, nothing else is harmed."""


class Ledger(Protocol):
    def load(self) -> list[GrantRecord]: ...
    def ended(self) -> frozenset[GrantId]:
        """Of this boot, as far as they are kept."""

    def store(self, record: GrantRecord) -> None:
        """Durable when it returns. Raises LedgerLost, LedgerFull."""

    @property
    def was_rebuilt(self) -> bool:
        """The file was damaged and put aside."""

    def close(self) -> None: ...
