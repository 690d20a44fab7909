"""The world as the desk for MIG needs it: what a card can be cut into, what it is cut into, and
how it is cut anew."""

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
    """Where an instance is, or goes."""

    profile: str
    span: Span

    def __str__(self) -> str:
        return f"{self.profile} at {self.span}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One form of instance that a card offers."""

    name: str
    """As NVIDIA writes it: 1g.10gb, 1g.10gb+me."""
    profile_id: int
    """NVML's, as `nvidia-smi mig -lgip` prints it."""
    slices: int
    """Of compute."""
    most: int
    """Instances of it on an empty card."""
    memory_bytes: Bytes
    spans: tuple[Span, ...] = ()
    """Where one may be; empty: the driver does not say, as while MIG is off."""
    fits: int | None = None
    """How many more can be made now; None while MIG is off."""


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One compute instance: what programs and containers use."""

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
    """Empty: it has no compute instance, nobody can use it."""

    @property
    def place(self) -> MigPlace:
        return MigPlace(self.profile, self.span)


@dataclass(frozen=True, slots=True)
class MigProcess:
    """Somebody with a context on a card or on one of its instances."""

    pid: int
    name: str
    uid: int | None = None
    """None: it is gone, or in a pid namespace we cannot see."""
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class MigState:
    """One card as NVML tells it."""

    gpu: GpuUuid
    index: int
    name: str
    supported: bool
    """Has it MIG at all?"""
    enabled: bool = False
    pending: bool = False
    """MIG mode after the next reset of the card."""
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[MigInstance, ...] = ()
    """By place."""
    processes: tuple[MigProcess, ...] = ()
    error: str = ""
    """Why nothing more is known of it."""

    @property
    def uuids(self) -> frozenset[GpuUuid]:
        """Of the card and its MIG devices."""
        return frozenset({self.gpu, *(one.uuid for i in self.instances for one in i.devices)})


@dataclass(frozen=True, slots=True)
class MigOutcome:
    """What became of a change."""

    before: MigState
    after: MigState | None
    """None: it could not be read any more."""
    error: str = ""
    """Why it is not what was asked for; empty: it is, or will be with the next reset."""
    rolled_back: bool = False
    """It failed, and is as it was before."""
    reset_needed: bool = False
    """The mode is changed with the card's next reset; no instance was made."""


@dataclass(frozen=True, slots=True)
class MigEdit:
    """A change of some of a card's instances."""

    gpu: GpuUuid
    remove: tuple[MigPlace, ...]
    make: MigPlace | None


class MigUnavailable(Exception):
    """NVML cannot be asked; the text says why."""


class MigPort(Protocol):
    """Cuts cards, in a process of its own that can be killed when the driver hangs."""

    async def states(self) -> tuple[MigState, ...]:
        """All cards. Raises MigUnavailable."""

    async def change(self, gpu: GpuUuid, wanted: tuple[str, ...] | None) -> MigOutcome:
        """All instances go, and one of each profile wanted is made; None: MIG off. Refused, with
        nothing done, when any process uses the card. Raises MigUnavailable when nothing is known of
        what became of it."""

    async def edit(
        self, gpu: GpuUuid, remove: tuple[MigPlace, ...], make: MigPlace | None
    ) -> MigOutcome:
        """These instances go and this one is made, beside whatever else is on the card: nobody
        else's instance is touched. What is gone or there already counts as done. Refused, with
        nothing done, when a process uses one that is to go. Raises MigUnavailable when nothing is
        known of what became of it."""


# --- instances that are made as they are asked for --------------------------------------------


class CutState(StrEnum):
    """Written before the driver is asked; after a kill the card says which of them came true."""

    RESERVED = "reserved"
    """It is to be made, and nobody else has its place."""
    MADE = "made"
    GOING = "going"
    """It is to be destroyed, for one that has to be where it is."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One instance of ours on a card: made because somebody asked, and ours to destroy."""

    card: GpuUuid
    place: MigPlace
    state: CutState
    at_unix_s: float
    who: str = ""
    """Whom it was last made for, for people."""
    uuid: GpuUuid | None = None
    """None: it is not there yet, or has no compute instance."""

    @property
    def key(self) -> tuple[GpuUuid, MigPlace]:
        return self.card, self.place


class CutLedger(Protocol):
    """Durable when `commit` returns. Raises LedgerLost, LedgerFull."""

    def load(self) -> list[Cut]: ...

    async def commit(self, put: Sequence[Cut], drop: Sequence[Cut] = ()) -> None:
        """All of it or nothing."""

    def close(self) -> None: ...


# --- what clients ask and see -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MigAsk:
    gpu: str
    """UUID or index of a card, or UUID of one of its instances."""
    profiles: tuple[str, ...] = ()
    """Empty: no instance, MIG stays on."""
    disable: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MigView:
    """One card as shown to people."""

    state: MigState
    holders: tuple[str, ...] = ()
    """Who is in the way of a change."""


@dataclass(frozen=True, slots=True)
class MigAnswer:
    """What became of a MigAsk."""

    before: MigView
    after: MigView | None
    """None after a dry run, or where it could not be read any more."""
    planned: tuple[MigPlace, ...]
    changed: bool = False
    rolled_back: bool = False
    reset_needed: bool = False
    failure: str = ""
    """What went wrong, what the card is now, and what to do; empty: done."""
    notes: tuple[str, ...] = ()
    """What else is to be done, as for the containers' specification."""


class MigService(Protocol):
    """What the local API offers; the daemon's shell implements it. Both raise Refused."""

    async def show(self, peer: Peer, gpu: str) -> list[MigView]: ...
    async def set(self, peer: Peer, ask: MigAsk) -> MigAnswer: ...
