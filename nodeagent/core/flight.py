"""The flight recorder: the last events of each book and the book's state before the first of them,
so that a run from production can be replayed.

A tape stores parts of LENGTH events and drops the oldest part, so a dump has at least the last
LENGTH events and at most twice as many. `replay` rebuilds the book of a dump and applies the same
events: decisions and memory have to come out the same.

A dump has names, pids, paths and GPUs. It leaves out possible secrets: users' command lines, and
the proofs and records that a queue controller gives its nodes. No decision depends on them.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from nodeagent.ports.clients import Refused
from sluicecommon.plain import read_plain, write_all_fields

VERSION: Final = 1
LENGTH: Final = 1000
LARGEST_BYTES: Final = 8 << 20
"""Limit for one book in a dump; a look at the kubelet lists every container of the node."""
SECRET: Final = frozenset({"command", "proof", "record"})
"""Fields that are left out if they are text; a grant's record is not."""
LEFT_OUT: Final = "(left out)"

EventT = TypeVar("EventT")


@dataclass(frozen=True, slots=True)
class Noted(Generic[EventT]):
    at_ns: int
    event: EventT
    did: tuple[str, ...]
    """Names of the instructions; "Refused" if the book refused the event."""


class Tape(Generic[EventT]):
    """Recorded events of one book.

    `memory` returns the book's current state. Events of the types in `quiet` come by the clock; one
    that equals the last of its type and has no effect is not recorded.
    """

    def __init__(self, memory: Callable[[], object], quiet: frozenset[type] = frozenset()) -> None:
        self._memory = memory
        self._quiet = quiet
        self._last: dict[type, EventT] = {}
        self._before: tuple[object, list[Noted[EventT]]] | None = None
        self._start = memory()
        self._events: list[Noted[EventT]] = []

    def note(self, event: EventT, at_ns: int, did: Sequence[object] | None) -> None:
        """Record an event after the book has handled it; `did` is None if the book refused it."""
        kind = type(event)
        if kind in self._quiet:
            if not did and self._last.get(kind) == event:
                return
            self._last[kind] = event
        names = ("Refused",) if did is None else tuple(type(do).__name__ for do in did)
        self._events.append(Noted(at_ns, event, names))
        if len(self._events) >= LENGTH:
            self._before = (self._start, self._events)
            self._begin()

    def cut(self) -> None:
        """Start a new tape, because the book was changed by something that is not an event."""
        self._before = None
        self._begin()

    def _begin(self) -> None:
        self._start, self._events = self._memory(), []

    def plain(self) -> dict[str, Any]:
        """JSON-ready content of at most LARGEST_BYTES."""
        end = self._memory()
        parts = [(self._start, self._events), (end, [])]
        if self._before is not None:
            start, events = self._before
            parts.insert(0, (start, [*events, *self._events]))
        for start, events in parts:
            found: dict[str, Any] = without_secrets(
                {
                    "start": write_all_fields(start),
                    "events": [_plain(one) for one in events],
                    "end": write_all_fields(end),
                }
            )
            if len(json.dumps(found)) <= LARGEST_BYTES:
                return found
        return {}


def _plain(noted: Noted[Any]) -> dict[str, Any]:
    return {
        "at_ns": noted.at_ns,
        "event": type(noted.event).__name__,
        "value": write_all_fields(noted.event),
        "did": list(noted.did),
    }


def without_secrets(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        return {
            key: LEFT_OUT
            if key in SECRET and isinstance(value, str) and value
            else without_secrets(value)
            for key, value in plain.items()
        }
    if isinstance(plain, list):
        return [without_secrets(one) for one in plain]
    return plain


def dump(tapes: Mapping[str, Tape[Any]], sluice: str) -> str:
    """JSON of all tapes; `sluice` is the version of the daemon that recorded them."""
    books = {name: tape.plain() for name, tape in tapes.items()}
    return json.dumps({"version": VERSION, "sluice": sluice, "books": books})


# --- replay -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    memory: type
    of: Callable[[Any], Any]
    events: Mapping[str, type]


def _kind(memory: type, of: Callable[[Any], Any], events: Any) -> _Kind:
    return _Kind(memory, of, {one.__name__: one for one in typing.get_args(events)})


def _kinds() -> Mapping[str, _Kind]:
    """The kinds of books by their names in a dump.

    A daemon records and never replays. It loads only the books that its settings use.
    """
    from nodeagent.core.dra import book as dra
    from nodeagent.core.grants import book as grants
    from nodeagent.core.grants import events as ev
    from nodeagent.core.grants import states
    from nodeagent.core.kubelet import book as kubelet
    from nodeagent.core.queue import book as queue
    from nodeagent.core.queue import events as queue_events

    return {
        "grants": _kind(states.GrantMemory, grants.GrantBook.of, ev.Event),
        "queue": _kind(queue.QueueMemory, queue.QueueBook.of, queue_events.Event),
        "dra": _kind(dra.ClaimMemory, dra.ClaimBook.of, dra.Event),
        "kubelet": _kind(kubelet.AllocationMemory, kubelet.AllocationBook.of, kubelet.Event),
    }


@dataclass(frozen=True, slots=True)
class Replayed:
    events: int
    differs: str
    """The first decision that differs, or the memory; empty if none does."""


def replay(text: str) -> dict[str, Replayed]:
    """Replay each book of a dump. Raises KeyError, TypeError or ValueError if the text is not a
    dump."""
    plain = json.loads(text)
    if plain["version"] != VERSION:
        raise ValueError(f"the dump has version {plain['version']}, this release reads {VERSION}")
    kinds = _kinds()
    return {name: _replay(kinds[name], body) for name, body in plain["books"].items() if body}


def _replay(kind: _Kind, body: Mapping[str, Any]) -> Replayed:
    book = kind.of(read_plain(kind.memory, body["start"]))
    for number, one in enumerate(body["events"]):
        event = read_plain(kind.events[one["event"]], one["value"])
        try:
            did = [type(do).__name__ for do in book.handle(event, one["at_ns"])]
        except Refused:
            did = ["Refused"]
        if did != one["did"]:
            return Replayed(
                number, f"{one['event']}, number {number}: now {did}, then {one['did']}"
            )
    end = without_secrets(write_all_fields(book.memory()))
    differs = "" if end == body["end"] else "the book's state at the end"
    return Replayed(len(body["events"]), differs)
