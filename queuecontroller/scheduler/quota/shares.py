"""Dominant resource share: a queue's or cohort's usage above its own quota, weighed.

For each resource, usage above the subtree's quota is divided by what the parent could use at most;
the largest such ratio, divided by the weight, is the share. Shares are compared as exact fractions:
rounding them would turn near ties into ties that priority then decides.
"""

from __future__ import annotations

from typing import Final

from queuecontroller.scheduler.model.flavor_resources import FlavorResources
from queuecontroller.scheduler.quota.tree import QuotaNode


class Share:
    """borrowed / (lendable * weight); with weight 0, larger than every share with a weight."""

    __slots__ = ("borrowed", "lendable", "weight_milli")

    def __init__(self, borrowed: int, lendable: int, weight_milli: int) -> None:
        self.borrowed = borrowed
        self.lendable = lendable
        self.weight_milli = weight_milli

    @property
    def is_zero(self) -> bool:
        return self.borrowed == 0

    @property
    def _unbounded(self) -> bool:
        return self.weight_milli == 0 and self.borrowed > 0

    def compare(self, other: Share) -> int:
        """Negative, 0 or positive as this share is smaller, equal or larger."""
        if self._unbounded or other._unbounded:
            if self._unbounded != other._unbounded:
                return 1 if self._unbounded else -1
            left, right = self.borrowed * other.lendable, other.borrowed * self.lendable
        else:
            left = self.borrowed * other.lendable * max(1, other.weight_milli)
            right = other.borrowed * self.lendable * max(1, self.weight_milli)
        return (left > right) - (left < right)

    def __lt__(self, other: Share) -> bool:
        return self.compare(other) < 0

    def __le__(self, other: Share) -> bool:
        return self.compare(other) <= 0

    def per_mille(self) -> int:
        """The share as Kueue shows it, rounded up; the largest integer when the weight is 0."""
        if self._unbounded:
            return 2**63 - 1
        return -(-self.borrowed * 1_000_000 // (self.lendable * max(1, self.weight_milli)))

    def __repr__(self) -> str:
        return f"Share({self.borrowed}/{self.lendable} weight {self.weight_milli}m)"


NO_SHARE: Final = Share(0, 1, 1000)


def dominant_share(node: QuotaNode, numbers: FlavorResources) -> Share:
    """The share with the current usage. A node without a parent borrows nothing."""
    if node.parent is None:
        return NO_SHARE
    borrowed: dict[str, int] = {}
    cells = node.cells
    for fr, quota in node.subtree_quota.items():
        above = cells[fr].used - quota
        if above > 0:
            resource = numbers.resource(fr)
            borrowed[resource] = borrowed.get(resource, 0) + above
    if not borrowed:
        return NO_SHARE
    lendable = lendable_by_resource(node.parent, numbers)
    best, best_of = 0, 1
    for resource, amount in borrowed.items():
        most = lendable.get(resource, 0)
        if most > 0 and amount * best_of > best * most:
            best, best_of = amount, most
    return Share(best, best_of, node.fair_weight_milli)


def lendable_by_resource(node: QuotaNode, numbers: FlavorResources) -> dict[str, int]:
    """The most that the node could use of each resource, over all flavors. Cached until the tree is
    rebuilt."""
    if node.lendable is None:
        total: dict[str, int] = {}
        for fr in node.root.subtree_quota:
            resource = numbers.resource(fr)
            total[resource] = total.get(resource, 0) + node.potential_available(fr)
        node.lendable = total
    return node.lendable
