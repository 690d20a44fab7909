"""How a grant's memory goes to the host and comes back, as the book knows it.

While it is spilled its processes are checkpointed by the driver: they keep what they are charged,
and the card has it free. Room on the card is its own through every step in which some of its memory
may be there, so a daemon that is killed in the middle of one never promises the same room twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from nodeagent.ports.ledger import Spill


class SpillSignal(StrEnum):
    BEGIN = "begin"
    DONE = "done"
    """Every process of it is checkpointed."""
    UNDONE = "undone"
    """One could not be: whatever had been is back on the card."""
    RETURN = "return"
    BACK = "back"
    """Every process of it is on the card again, and may call the driver."""
    STAYED = "stayed"
    """It could not come back: every process is checkpointed as before."""
    FOUND = "found"
    """Somebody else brought it back."""


NEXT: Mapping[tuple[Spill, SpillSignal], Spill] = MappingProxyType(
    {
        (Spill.RESIDENT, SpillSignal.BEGIN): Spill.SPILLING,
        (Spill.SPILLING, SpillSignal.DONE): Spill.SPILLED,
        (Spill.SPILLING, SpillSignal.UNDONE): Spill.RESIDENT,
        (Spill.SPILLED, SpillSignal.RETURN): Spill.RETURNING,
        (Spill.SPILLED, SpillSignal.FOUND): Spill.RESIDENT,
        (Spill.RETURNING, SpillSignal.BACK): Spill.RESIDENT,
        (Spill.RETURNING, SpillSignal.STAYED): Spill.SPILLED,
    }
)
