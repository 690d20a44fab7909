"""State that outlives the daemon: grant records, and the port to the ledger that stores them."""

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
    """The intent is recorded; the region does not exist yet."""
    ACTIVE = "active"
    DRAINING = "draining"
    """Released: nothing new may start, but registered processes still run."""
    ENDING = "ending"
    """No process is left; the region is being removed."""
    ENDED = "ended"


class Spill(StrEnum):
    """Location of a grant's device memory."""

    RESIDENT = "resident"
    """The memory is on its GPUs, the normal state."""
    SPILLING = "spilling"
    """The memory is being written to the host; the grant still owns its room on the GPUs."""
    SPILLED = "spilled"
    """The memory is on the host; its room on the GPUs is free for other grants."""
    RETURNING = "returning"
    """The grant owns its room again, and its memory is being copied back."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Promises to a grant on one GPU."""

    gpu: GpuUuid
    memory_bytes: Bytes
    physical_bytes: Bytes
    share_ppm: Ppm
    request_bytes: Bytes | None = None
    """Guaranteed part of memory_bytes; the rest is borrowed. None: all of it."""
    limit_bytes: Bytes | None = None
    """Most memory including what it borrows; memory_bytes moves between the two. None: it borrows
    nothing."""

    @property
    def most_bytes(self) -> Bytes:
        return self.memory_bytes if self.limit_bytes is None else self.limit_bytes

    @property
    def guaranteed_bytes(self) -> Bytes:
        return self.memory_bytes if self.request_bytes is None else self.request_bytes


@dataclass(frozen=True, slots=True)
class ContainerRef:
    """The container, according to the kubelet, or the claim that a grant was made for."""

    pod_uid: str
    container: str
    device_ids: tuple[str, ...]
    """The kubelet's device ids, sorted: what it counts, not where the grant is."""
    namespace: str = ""
    pod: str = ""
    claim: str = ""
    """UID of the ResourceClaim that it was made for, whichever containers use it; empty: none."""
    nonce: str = ""
    """Name of a claim's CDI file."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One grant as the ledger stores it."""

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
    """True while it is paused and others may use its share of time; its memory is not lent."""
    driver_path: str = ""
    nvml_path: str = ""
    command: str = ""
    priority: int = 0
    """The grant with the higher priority goes first on a GPU on which both are active."""
    ceiling_ppm: Ppm = NO_CEILING
    """Cap of an elastic grant, even while it is alone. 0: none."""
    gang: bool = False
    """True if its processes are ranks of a job that is on several nodes: windows would make them
    wait for each other's."""
    trusted_group: str = ""
    """Its owner and the group's name, if its programs are clients of the owner's MPS server; a GPU
    with such a grant takes none of others. Empty: none."""
    container: ContainerRef | None = None
    """Set if it is held for a container until it is released; `owner` is then empty."""
    spill: Spill = Spill.RESIDENT
    spilled_unix_s: float = 0.0
    """Time since which it is spilled."""
    spilled_bytes: tuple[Bytes, ...] = ()
    """Memory that it had on each GPU, as measured when the spill began; empty: it is resident."""


class LedgerLost(Exception):
    """The ledger could not be made durable. Retrying is wrong: after a failed fsync Linux drops the
    dirty pages."""


class LedgerFull(Exception):
    """No space left: the row was not written; nothing else is affected."""


class Ledger(Protocol):
    def load(self) -> list[GrantRecord]: ...
    def ended(self) -> frozenset[GrantId]:
        """Grants of this boot that have ended, as far as they are stored."""

    def store(self, record: GrantRecord) -> None:
        """Durable when it returns. Raises LedgerLost or LedgerFull."""

    @property
    def was_rebuilt(self) -> bool:
        """True if the file was corrupt and was moved aside."""

    def close(self) -> None: ...
