"""Protocol of a reducer: a book that receives events and returns instructions.

`handle` changes the book and returns the instructions, in order. The caller feeds the result of
each back as an event. Any order of events is legal: one that no longer applies changes nothing.
`nodeagent.shell.drive` carries instructions out, with one rule for every failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

EventT = TypeVar("EventT", contravariant=True)
InstructionT = TypeVar("InstructionT", covariant=True)


class Book(Protocol[EventT, InstructionT]):
    def handle(self, event: EventT, now_ns: int) -> Sequence[InstructionT]:
        """Apply an event. `now_ns` is of one monotonic clock. Raises Refused for an impossible
        event; the book is then unchanged."""
        ...
