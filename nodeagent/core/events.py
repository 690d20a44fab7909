"""What happens to grants, and what is to be done about it: the vocabulary of the grants
reducer.

Both sides are frozen values of plain types, so that a recorded run replays in a test
(`to_plain`, `from_plain`).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nodeagent.core.placement import GpuCapacity
from nodeagent.ports import (
    ContainerRef,
    DeviceLimits,
    GrantAsk,
    GrantRecord,
    GrantState,
    Process,
    RefusalKind,
    ResizeAsk,
)
from nodeagent.units import GrantId, RequestId, SlotIndex

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
class PauseSet:
    grant: GrantId
    paused: bool
    lends: bool = False
    """Others may have its share of the time until it goes on, which may then be refused."""


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
    | PauseSet
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


# --- recording --------------------------------------------------------------------------------

_EVENT_TYPES: Mapping[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Event)}


def to_plain(event: Event) -> dict[str, Any]:
    """JSON-ready."""
    return {"event": type(event).__name__, **_plain(event)}


def from_plain(plain: Mapping[str, Any]) -> Event:
    """The inverse of to_plain. Raises KeyError, TypeError or ValueError on anything else."""
    body = dict(plain)
    event: Event = read_plain(_EVENT_TYPES[body.pop("event")], body)
    return event


def write_plain(value: Any) -> Any:
    """A dataclass as JSON-ready dicts and lists."""
    return _plain(value)


def read_plain(kind: Any, value: Any) -> Any:
    """Builds `kind` (a dataclass, a NewType, a union with None, a tuple …) from plain values."""
    if hasattr(kind, "__supertype__"):
        return read_plain(kind.__supertype__, value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
        return kind(**{name: read_plain(hints[name], item) for name, item in value.items()})
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return (
            None
            if value is None
            else read_plain(next(a for a in args if a is not type(None)), value)
        )
    if origin is frozenset:
        return frozenset(read_plain(args[0], item) for item in value)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(read_plain(args[0], item) for item in value)
    if origin is tuple:
        return tuple(read_plain(a, item) for a, item in zip(args, value, strict=True))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    return value
