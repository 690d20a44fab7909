"""Who gets memory that nobody was guaranteed, and who gives it back.

A grant with a request below its limit is guaranteed the request and borrows up to the limit what
nobody has. Lent memory is lent to one grant alone, so together all have no more than the card:
a borrower is stopped at what it has got, and nobody else's allocation fails for it. Nobody is
evicted: a borrower that holds more than its request keeps it until it frees it, and only what it
does not hold is taken back when somebody asks for a grant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.units import MIB, Bytes, GpuUuid, GrantId

GRANULE: Final = 2 * MIB
"""What drivers give."""
SMALLEST: Final = 64 * MIB
"""Less is not worth a row in the ledger, unless it is all that is missing."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """One (grant, GPU)."""

    grant: GrantId
    gpu: GpuUuid
    priority: int
    created_unix_s: float
    request_bytes: int
    limit_bytes: int
    memory_bytes: int
    """What it has now."""
    used_bytes: int


def taken_back(borrower: Borrower) -> Bytes:
    """What it has left when others want memory: what it was guaranteed, or what it holds."""
    held = -(-borrower.used_bytes // GRANULE) * GRANULE
    return Bytes(min(borrower.limit_bytes, max(borrower.request_bytes, held)))


def lend(free_bytes: int, borrowers: Sequence[Borrower]) -> dict[GrantId, Bytes]:
    """What each shall have of one GPU with so much free: a higher priority first, equal ones in
    equal parts, each up to its limit. Who stays as it is is not in it."""
    shall = {one.grant: one.memory_bytes for one in borrowers}
    free = free_bytes // GRANULE * GRANULE
    for priority in sorted({one.priority for one in borrowers}, reverse=True):
        left = [
            one
            for one in sorted(borrowers, key=lambda one: (one.created_unix_s, one.grant))
            if one.priority == priority and one.memory_bytes < one.limit_bytes
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
