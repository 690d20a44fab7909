"""Which limits of the cohort tree a request runs into, and by how much at each.

The walk is that of `QuotaNode.available`: what a ClusterQueue asks above what it keeps for itself
is asked of its parent, and every node on the way may say no by its borrowing limit, the root by its
quota. Each says on its own how much it lacks; all of them have to be satisfied.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.quota.tree import Cell, QuotaNode


class LimitKind(StrEnum):
    NOMINAL = "nominalQuota"
    """The quota of a ClusterQueue without a cohort."""
    BORROWING = "borrowingLimit"
    COHORT = "cohort"
    """The quota of the whole cohort tree."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One place that says no. Amounts in the engine's integers."""

    kind: LimitKind
    holder: str
    """Name of the ClusterQueue or cohort."""
    is_cohort: bool
    allowed: int
    """What may be used there, with all that may be borrowed."""
    used: int
    """By everybody below it, as far as it counts there."""
    missing: int

    @property
    def label(self) -> str:
        return f"{'Cohort' if self.is_cohort else 'ClusterQueue'} {self.holder}"


def limits(node: QuotaNode, fr: Fr, needed: int) -> list[Limit]:
    """The limits that refuse `needed` more at the node, from it up to the root."""
    found: list[Limit] = []
    cell: Cell = node.cell(fr)
    kept = 0
    """Unused and not lent, on the way so far: so much of what is needed is not asked further up."""
    for at in node.path[:-1]:
        above = cell.used - cell.guaranteed
        if above < 0:
            kept -= above
            above = 0
        if cell.limit is not None:
            room = cell.lent - above + cell.limit + kept
            if needed > room:
                found.append(_limit(LimitKind.BORROWING, at, cell, cell.limit, needed - room))
        assert cell.up is not None
        cell = cell.up
    room = cell.quota - cell.used + kept
    if needed > room:
        root = node.root
        kind = LimitKind.COHORT if root.is_cohort else LimitKind.NOMINAL
        found.append(_limit(kind, root, cell, 0, needed - room))
    return found


def _limit(kind: LimitKind, at: QuotaNode, cell: Cell, borrow: int, missing: int) -> Limit:
    allowed = cell.quota + borrow
    return Limit(kind, at.name, at.is_cohort, allowed, cell.used, missing)
