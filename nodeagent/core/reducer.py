"""A reducer: a book that is told events and answers with instructions.

`handle` changes the book and returns what is to be done, in order. Whoever carries an instruction
out feeds its result back as an event. Any order of events is legal: one that no longer applies
changes nothing. `nodeagent.shell.drive` carries out, with one rule for every failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

EventT = TypeVar("EventT", contravariant=True)
InstructionT = TypeVar("InstructionT", covariant=True)


class Book(Protocol[EventT, InstructionT]):
    def handle(self, event: EventT, now_ns: int) -> Sequence[InstructionT]:
        """`now_ns` is of one clock that only goes forward. Raises Refused for an event that cannot
        be; the book is then unchanged."""
        ...
