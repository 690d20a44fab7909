"""Ports and values for MIG: the profiles that a card offers, its instances, and changes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nodeagent.ports.clients import Peer
from nodeagent.units import Bytes, GpuUuid


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A run of memory slices."""

    start: int
    size: int

    def overlaps(self, other: Span) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


@dataclass(frozen=True, slots=True, order=True)
class MigPlace:
    """Placement of an instance."""

    profile: str
    span: Span

    def __str__(self) -> str:
        return f"{self.profile} at {self.span}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of instance that a card offers."""

    name: str
    """NVIDIA's name, such as 1g.10gb or 1g.10gb+me."""
    profile_id: int
    """NVML's id, as `nvidia-smi mig -lgip` prints it."""
    slices: int
    """Compute slices."""
    most: int
    """Instances of it on an empty card."""
    memory_bytes: Bytes
    spans: tuple[Span, ...] = ()
    """Possible placements; empty: the driver does not report them, as while MIG is off."""
    fits: int | None = None
    """Instances that can still be created now; None while MIG is off."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One compute instance, which programs and containers use."""

    uuid: GpuUuid
    compute_instance: int
    profile_id: int


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One GPU instance of a card."""

    gpu_instance: int
    profile: str
    profile_id: int
    span: Span
    devices: tuple[MigDevice, ...] = ()
    """Empty: it has no compute instance, so no program can use it."""

    @property
    def place(self) -> MigPlace:
        return MigPlace(self.profile, self.span)


@dataclass(frozen=True, slots=True)
class MigProcess:
    """A process with a context on a card or on one of its instances."""

    pid: int
    name: str
    uid: int | None = None
    """User of the process; None if it is gone, or in a pid namespace that we cannot see."""
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class MigState:
    """MIG state of one card, from NVML."""

    gpu: GpuUuid
    index: int
    name: str
    supported: bool
    """True if the card has MIG at all."""
    enabled: bool = False
    pending: bool = False
    """MIG mode after the next reset of the card."""
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    """Instances sorted by placement."""
    processes: tuple[MigProcess, ...] = ()
    error: str = ""
    """The reason why nothing more is known; empty if all is."""

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        """UUIDs of the card and its MIG devices."""
        return frozenset({self.gpu, *(one.uuid for i in self.instances for one in i.devices)})


@dataclass(frozen=True, slots=True)
class MigOutcome:
    """Result of a change."""

    before: MigState
    after: MigState | None
    """State after the change; None if it could not be read any more."""
    error: str = ""
    """The reason why the change failed; empty if it succeeded, or will with the next reset."""
    rolled_back: bool = False
    """True if it failed and the earlier state was restored."""
    reset_needed: bool = False
    """True if the mode changes with the card's next reset; no instance was created."""


@dataclass(frozen=True, slots=True)
class MigEdit:
    """A change of some of a card's instances."""

    gpu: GpuUuid
    remove: tuple[MigPlace, ...]
    make: MigPlace | None


class MigUnavailable(Exception):
    """NVML cannot be used; the text has the reason."""


class MigPort(Protocol):
    """Partitions cards, in a separate process that can be killed when the driver hangs."""

    async def states(self) -> tuple[MigState, ...]:
        """All cards. Raises MigUnavailable."""

    async def change(self, gpu: GpuUuid, wanted: tuple[str, ...] | None) -> MigOutcome:
        """Replace all instances by one of each wanted profile; None switches MIG off.

        Refused without any change while a process uses the card. Raises MigUnavailable if the
        result is unknown.
        """

    async def edit(
        self, gpu: GpuUuid, remove: tuple[MigPlace, ...], make: MigPlace | None
    ) -> MigOutcome:
        """Remove these instances and create this one; no other instance on the card is changed.

        An instance that is already gone, or already exists, counts as done. Refused without any
        change while a process uses one that is to be removed. Raises MigUnavailable if the result
        is unknown.
        """


# --- instances that are created on demand -----------------------------------------------------


class CutState(StrEnum):
    """Written before the driver is called; after a kill the card shows which of them came true."""

    RESERVED = "reserved"
    """It is to be created, and no other instance may use its placement."""
    MADE = "made"
    GOING = "going"
    """It is to be destroyed, because another instance needs its placement."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One instance of ours on a card: created for a request, and ours to destroy."""

    card: GpuUuid
    place: MigPlace
    state: CutState
    at_unix_s: float
    who: str = ""
    """The holder it was last created for, for people."""
    uuid: GpuUuid | None = None
    """UUID of its MIG device; None if it does not exist yet, or has no compute instance."""

    @property
    def key(self) -> tuple[GpuUuid, MigPlace]:
        return self.card, self.place


class CutLedger(Protocol):
    """Durable when `commit` returns. Raises LedgerLost or LedgerFull."""

    def load(self) -> list[Cut]: ...

    async def commit(self, put: Sequence[Cut], drop: Sequence[Cut] = ()) -> None:
        """Write all of it or nothing."""

    def close(self) -> None: ...


# --- requests and views of clients ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigAsk:
    gpu: str
    """UUID or index of a card, or UUID of one of its instances."""
    profiles: tuple[str, ...] = ()
    """Empty: no instance, and MIG stays on."""
    disable: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MigView:
    """One card as shown to people."""

    state: MigState
    holders: tuple[str, ...] = ()
    """Users that block a change."""


@dataclass(frozen=True, slots=True)
class MigAnswer:
    """Result of a MigAsk."""

    before: MigView
    after: MigView | None
    """The geometry afterwards; None after a dry run, or if the card cannot be read any more."""
    planned: tuple[MigPlace, ...]
    changed: bool = False
    rolled_back: bool = False
    reset_needed: bool = False
    failure: str = ""
    """The error, the card's state, and the remedy; empty: done."""
    notes: tuple[str, ...] = ()
    """Further steps for the user, such as regenerating the containers' specification."""


class MigService(Protocol):
    """Operations of the local API; the daemon's shell implements it. Both raise Refused."""

    async def show(self, peer: Peer, gpu: str) -> list[MigView]: ...
    async def set(self, peer: Peer, ask: MigAsk) -> MigAnswer: ...
