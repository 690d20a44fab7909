"""ResourceClaims on the node: their allocation, the rows of prepared claims, and the ports for
both.

A *share* is one result of a claim's allocation: a device of ours, whole or a part of it. A *part*
of a claim is the shares that form one grant: all of them, unless the scheduler created the claim
for containers that request an extended resource; then each container has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType, Protocol

from nodeagent.ports.kubelet import Nonce, PodIdentity
from nodeagent.units import Bytes, GrantId, SharePolicy

DRIVER: Final = "sluice.dev"
"""The driver's name, used by its sockets, slices and device classes."""
ClaimUid = NewType("ClaimUid", str)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """Reference to a claim, as the kubelet names it."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """Configuration of a claim's shares, apart from their size (ShareConfig of sluice.dev/v1)."""

    policy: SharePolicy | None = None
    """Policy of the share; None if the requested cores and the node's cores_policy decide it."""
    priority: int = 0
    paused: bool = False
    ceiling_percent: int = 0
    """0: no ceiling."""
    gang: bool = False
    """True if its pods are ranks of a job on several nodes."""
    class_priority: bool = False
    """True if the DeviceClass sets the priority."""


@dataclass(frozen=True, slots=True)
class Share:
    request: str
    """The request's name in the response to the kubelet; for a list of alternatives, the list's
    name."""
    pool: str
    device: str
    share_id: str = ""
    memory_bytes: Bytes | None = None
    """Memory of the share; None if the claim has the whole device."""
    cores_percent: int | None = None
    config: ShareConfig = field(default_factory=ShareConfig)


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """Allocation of our devices on this node to a claim, from the scheduler."""

    claim: ClaimRef
    shares: tuple[Share, ...]
    pod: PodIdentity | None = None
    """The one pod that it was created for; None: several pods may use it."""
    by_container: bool = False
    """True if the scheduler created it for an extended resource, see the module."""


class NoAllocation(ValueError):
    """The claim cannot be prepared here as it is; the text says what would have to change."""


# --- rows --------------------------------------------------------------------------------------


class ClaimState(StrEnum):
    INTENT = "intent"
    """Some of its grants do not exist yet, or not any more."""
    PREPARED = "prepared"
    """It has its grants, and the kubelet was answered."""
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Part:
    nonce: Nonce
    """Names its CDI file; stays the same if a grant is lost, because the kubelet stores it."""
    shares: tuple[int, ...]
    """Indexes into the allocation's shares; empty: unknown, it was taken over from a grant."""
    grant: GrantId | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    claim: ClaimRef
    allocation: ClaimAllocation | None
    """The claim's allocation; None if it was taken over from a grant whose row was lost."""
    parts: tuple[Part, ...]
    state: ClaimState
    boot_id: str
    at_unix_s: float
    driver: str = ""
    """Generation of the driver that the CDI names have beside the nonce; empty: none."""


class ClaimLedger(Protocol):
    """Durable when `commit` returns. Raises LedgerLost or LedgerFull."""

    def load(self) -> list[PreparedClaim]:
        """All rows that are not released."""

    async def commit(self, rows: Sequence[PreparedClaim]) -> None:
        """Write all rows or none."""

    def close(self) -> None: ...


# --- the outside ------------------------------------------------------------------------------


class ClaimGone(Exception):
    """The API server has no such claim, or its UID differs."""


class ClaimsAway(Exception):
    """The API server cannot be reached now: nothing is known, and no claim counts as gone."""


class ClaimSource(Protocol):
    async def allocation(self, claim: ClaimRef) -> ClaimAllocation:
        """Raises ClaimGone, ClaimsAway or NoAllocation."""


# --- requests of the kubelet -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One share of a prepared claim, as it is reported to the kubelet."""

    request: str
    pool: str
    device: str
    share_id: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    pool: str
    device: str
    healthy: bool
    at_unix_s: float
    why: str = ""


class NotPrepared(Exception):
    """The claim could not be prepared; the kubelet retries, and shows the text to people."""


class ClaimService(Protocol):
    """Operations of the plugin's server; the daemon's shell implements it."""

    async def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Idempotent. Raises NotPrepared."""

    async def unprepare(self, claim: ClaimRef) -> None:
        """Idempotent, also for unknown claims. Raises NotPrepared."""

    def health(self) -> tuple[DeviceHealth, ...]:
        """Health of all devices."""

    async def health_changed(self, longest_s: float) -> None:
        """Return when `health` may have changed, or after `longest_s` seconds."""
