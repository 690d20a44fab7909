"""Spilling of a grant's memory to the host and its return, as a state machine.

While a grant is spilled, its processes are checkpointed by the driver: they keep what they are
charged, and the card has the memory free. The grant keeps its room on the card through every step
in which some of its memory may be there, so a daemon that is killed during a step never promises
the same room twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from nodeagent.ports.ledger import Spill


class SpillSignal(StrEnum):
    BEGIN = "begin"
    DONE = "done"
    """All its processes are checkpointed."""
    UNDONE = "undone"
    """A process could not be checkpointed; all memory is back on the card."""
    RETURN = "return"
    BACK = "back"
    """All its processes are on the card again, and may call the driver."""
    STAYED = "stayed"
    """It could not return; all its processes are still checkpointed."""
    FOUND = "found"
    """Another program returned it to the card."""


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
