"""A ResourceClaim as the node meets it: what the scheduler allotted, what was made of it, and the
ports behind both.

A *share* is one result of a claim's allocation: a device of ours, whole or a part of it. A *part*
of a claim is the shares that are one grant: all of them, unless the claim was made by the
scheduler for containers that ask for an extended resource; then each container has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType, Protocol

from nodeagent.ports.kubelet import Nonce, PodIdentity
from nodeagent.units import Bytes, GrantId, SharePolicy

DRIVER: Final = "sluice.dev"
"""The driver's name: of its sockets, slices and device classes."""
ClaimUid = NewType("ClaimUid", str)


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """As the kubelet names it."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """What a claim says about its shares beside their size (ShareConfig of sluice.dev/v1)."""

    policy: SharePolicy | None = None
    """None: by the cores that were asked for, and the node's cores_policy."""
    priority: int = 0
    paused: bool = False
    ceiling_percent: int = 0
    """0: none."""


@dataclass(frozen=True, slots=True)
class Share:
    request: str
    """As the response to the kubelet names it; of a list of alternatives, the list's."""
    pool: str
    device: str
    share_id: str = ""
    memory_bytes: Bytes | None = None
    """None: the device as a whole is this claim's."""
    cores_percent: int | None = None
    config: ShareConfig = field(default_factory=ShareConfig)


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What the scheduler gave a claim of our devices on this node."""

    claim: ClaimRef
    shares: tuple[Share, ...]
    pod: PodIdentity | None = None
    """The one pod that it was made for; None: several may use it."""
    by_container: bool = False
    """Made by the scheduler for an extended resource: see the module."""


class NoAllocation(ValueError):
    """The claim cannot be prepared here, as it is; the text says what would have to change."""


# --- what we remember -------------------------------------------------------------------------


class ClaimState(StrEnum):
    INTENT = "intent"
    """Some of its grants are not there, or no more."""
    PREPARED = "prepared"
    """It has its grants, and the kubelet was told."""
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Part:
    nonce: Nonce
    """Names its CDI file; stays through lost grants, because the kubelet keeps it."""
    shares: tuple[int, ...]
    """Places in the allotment's shares; empty: not known, it was taken over from a grant."""
    grant: GrantId | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    claim: ClaimRef
    allocation: ClaimAllocation | None
    """None: taken over from a grant whose row was lost."""
    parts: tuple[Part, ...]
    state: ClaimState
    boot_id: str
    at_unix_s: float
    driver: str = ""
    """The driver's generation that the CDI names have beside the nonce; empty: none."""


class ClaimLedger(Protocol):
    """Durable when `commit` returns. Raises LedgerLost, LedgerFull."""

    def load(self) -> list[PreparedClaim]:
        """All that are not released."""

    async def commit(self, rows: Sequence[PreparedClaim]) -> None:
        """All of them or none."""

    def close(self) -> None: ...


# --- the outside ------------------------------------------------------------------------------


class ClaimGone(Exception):
    """The API server has no such claim, or another one of that name."""


class ClaimsAway(Exception):
    """The API server cannot be asked now; nothing is known, nothing is gone."""


class ClaimSource(Protocol):
    async def allocation(self, claim: ClaimRef) -> ClaimAllocation:
        """Raises ClaimGone, ClaimsAway, NoAllocation."""


# --- what the kubelet asks --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One share of a prepared claim, as the kubelet is told of it."""

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
    """The kubelet tries again, and shows the text to people."""


class ClaimService(Protocol):
    """What the plugin's server offers; the daemon's shell implements it."""

    async def prepare(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        """Idempotent. Raises NotPrepared."""

    async def unprepare(self, claim: ClaimRef) -> None:
        """Idempotent, also for claims never heard of. Raises NotPrepared."""

    def health(self) -> tuple[DeviceHealth, ...]:
        """Of all devices."""

    async def health_changed(self, longest_s: float) -> None:
        """Returns when `health` may say something else, or after so long."""
