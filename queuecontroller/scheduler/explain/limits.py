"""The limits of the cohort tree that a request exceeds, and by how much.

The walk is that of `QuotaNode.available`: what a ClusterQueue requests above its guaranteed quota
is requested from its parent, and every node on the way may refuse by its borrowing limit, the root
by its quota. Each limit states its own shortage; all of them have to be satisfied.
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
    """One limit that refuses the request. Amounts are the scheduler's integers."""

    kind: LimitKind
    holder: str
    """Name of the ClusterQueue or cohort."""
    is_cohort: bool
    allowed: int
    """Usage allowed there, with everything that may be borrowed."""
    used: int
    """Usage by all queues below it, as far as it counts there."""
    missing: int

    @property
    def label(self) -> str:
        return f"{'Cohort' if self.is_cohort else 'ClusterQueue'} {self.holder}"


def limits(node: QuotaNode, fr: Fr, needed: int) -> list[Limit]:
    """The limits that refuse `needed` more at the node, from it up to the root."""
    found: list[Limit] = []
    cell: Cell = node.cell(fr)
    kept = 0
    """Unused guaranteed quota on the path so far, which need not be requested further up."""
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
