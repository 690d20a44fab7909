"""Lends memory that is not guaranteed to any grant, and takes it back.

A grant with a request below its limit is guaranteed the request and borrows free memory up to the
limit. Lent memory is lent to one grant alone, so together all have no more than the card: a
borrower is stopped at what it has got, and no other grant's allocation fails for it. No grant is
evicted: a borrower that uses more than its request keeps it until it frees it, and only unused
memory is taken back for a new request.

Programs measure free memory when they start and size themselves by it; inference servers refuse
to start when it grows meanwhile. So nothing changes while a process of the grant is new.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeagent.units import MIB, Bytes, GpuUuid, GrantId

GRANULE: Final = 2 * MIB
"""Granularity of drivers' allocations."""
SMALLEST: Final = 64 * MIB
"""A smaller change is not worth a row in the ledger, unless it reaches the limit."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A grant that may borrow, on one GPU."""

    grant: GrantId
    gpu: GpuUuid
    priority: int
    created_unix_s: float
    request_bytes: int
    limit_bytes: int
    memory_bytes: int
    """Memory that it has now."""
    used_bytes: int
    fixed: bool = False
    """True while no memory is lent to it."""
    kept: bool = False
    """True while no memory is taken back from it."""


@dataclass(slots=True)
class Beginnings:
    """How long the processes of one grant have been there, and what follows for its memory."""

    pause_ns: int
    """How long a process is new."""
    _seen: dict[tuple[int, int], int] = field(default_factory=dict)
    """Process (pid, start time) to when it was first seen."""
    _began_ns: int | None = None
    """Time since which at least one of them has been new."""
    _lent: bool = False

    def look(self, now_ns: int, processes: Collection[tuple[int, int]]) -> tuple[bool, bool]:
        """(fixed, kept) of a Borrower.

        A grant is lent memory once before its first process can have measured. Processes that start
        all the time keep a loan from others for `pause_ns` only, not for ever.
        """
        self._seen = {one: self._seen.get(one, now_ns) for one in processes}
        new = any(now_ns - since < self.pause_ns for since in self._seen.values())
        if not new:
            self._began_ns = None
        elif self._began_ns is None:
            self._began_ns = now_ns
        kept = self._began_ns is not None and now_ns - self._began_ns < self.pause_ns
        return new and self._lent, kept

    def lent(self) -> None:
        """It was considered when memory was lent."""
        self._lent = True


def taken_back(borrower: Borrower) -> Bytes:
    """Memory that it keeps when others need it: its guarantee, or what it uses."""
    if borrower.kept:
        return Bytes(borrower.memory_bytes)
    held = -(-borrower.used_bytes // GRANULE) * GRANULE
    return Bytes(min(borrower.limit_bytes, max(borrower.request_bytes, held)))


def lend(free_bytes: int, borrowers: Sequence[Borrower]) -> dict[GrantId, Bytes]:
    """New memory of each borrower on one GPU with `free_bytes` free: higher priorities first, equal
    ones in equal parts, each up to its limit. Borrowers without a change are left out."""
    shall = {one.grant: one.memory_bytes for one in borrowers}
    free = free_bytes // GRANULE * GRANULE
    for priority in sorted({one.priority for one in borrowers}, reverse=True):
        left = [
            one
            for one in sorted(borrowers, key=lambda one: (one.created_unix_s, one.grant))
            if one.priority == priority and one.memory_bytes < one.limit_bytes and not one.fixed
        ]
        while left and free >= GRANULE:
            part = max(GRANULE, free // len(left) // GRANULE * GRANULE)
            for one in left:
                more = min(part, free, one.limit_bytes - shall[one.grant])
                shall[one.grant] += more
                free -= more
            left = [one for one in left if shall[one.grant] < one.limit_bytes]
    return {
        one.grant: Bytes(shall[one.grant])
        for one in borrowers
        if shall[one.grant] - one.memory_bytes >= SMALLEST
        or one.memory_bytes < shall[one.grant] == one.limit_bytes
    }
