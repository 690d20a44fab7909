"""The cohort tree: what each ClusterQueue may still use of each (flavor, resource).

A node keeps `guaranteed` (its subtree's quota minus the lending limit, never below 0) for itself
and lends the rest to its parent; usage above `guaranteed` therefore counts at the parent too. Every
change of usage is its own inverse when repeated with the opposite sign, in any order, because a
parent's usage is always the sum over its children of max(0, usage - guaranteed): what-if simulation
is a list of additions to take back and never a copy.

(flavor, resource) pairs are numbered once in a `FlavorResources`; trees and usages speak in these
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NewType

from .quantities import MAX_AMOUNT

Fr = NewType("Fr", int)
"""Number of one (flavor, resource) pair."""

Usage = Mapping[Fr, int]


class FlavorResources:
    """Numbers for (flavor, resource) pairs, given out in the order of first sight."""

    __slots__ = ("_numbers", "_pairs")

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], Fr] = {}
        self._pairs: list[tuple[str, str]] = []

    def number(self, flavor: str, resource: str) -> Fr:
        pair = (flavor, resource)
        known = self._numbers.get(pair)
        if known is None:
            known = Fr(len(self._pairs))
            self._numbers[pair] = known
            self._pairs.append(pair)
        return known

    def pair(self, fr: Fr) -> tuple[str, str]:
        return self._pairs[fr]

    def resource(self, fr: Fr) -> str:
        return self._pairs[fr][1]


class QuotaNode:
    """One ClusterQueue or cohort in the tree."""

    __slots__ = (
        "borrowing_limit",
        "children",
        "fair_weight_milli",
        "freed",
        "generation",
        "guaranteed",
        "height",
        "is_cohort",
        "lendable",
        "lending_limit",
        "name",
        "nominal",
        "parent",
        "path",
        "subtree_quota",
        "usage",
    )

    def __init__(self, name: str, *, is_cohort: bool, fair_weight_milli: int = 1000) -> None:
        self.name = name
        self.is_cohort = is_cohort
        self.fair_weight_milli = fair_weight_milli
        self.parent: QuotaNode | None = None
        self.children: list[QuotaNode] = []
        self.nominal: dict[Fr, int] = {}
        self.borrowing_limit: dict[Fr, int] = {}
        self.lending_limit: dict[Fr, int] = {}
        self.subtree_quota: dict[Fr, int] = {}
        self.guaranteed: dict[Fr, int] = {}
        self.usage: dict[Fr, int] = {}
        self.lendable: dict[str, int] | None = None
        """By resource: what this node could use at most; see `shares`. None until asked for."""
        self.path: tuple[QuotaNode, ...] = (self,)
        """From this node up to the root."""
        self.height = 0
        """ClusterQueues have 0, a cohort one more than its highest child cohort."""
        self.generation = 0
        """Counted at roots: grows with every lasting change of usage or quota in the tree."""
        self.freed = 0
        """Counted at roots: grows when quota may have become free; a part of `generation`."""

    def __repr__(self) -> str:
        return f"QuotaNode({self.name!r})"

    @property
    def root(self) -> QuotaNode:
        return self.path[-1]

    def set_quota(
        self, fr: Fr, nominal: int, borrowing_limit: int | None, lending_limit: int | None
    ) -> None:
        self.nominal[fr] = nominal
        if borrowing_limit is not None:
            self.borrowing_limit[fr] = borrowing_limit
        if lending_limit is not None:
            self.lending_limit[fr] = lending_limit

    def subtree(self) -> Iterator[QuotaNode]:
        """This node and all below, parents first."""
        yield self
        for child in self.children:
            yield from child.subtree()

    def cluster_queues(self) -> Iterator[QuotaNode]:
        return (node for node in self.subtree() if not node.is_cohort)

    # -- what is left -----------------------------------------------------------------------

    def available(self, fr: Fr) -> int:
        """What this node may still use; negative when quotas shrank below the usage."""
        path = self.path
        top = path[-1]
        left = top.subtree_quota.get(fr, 0) - top.usage.get(fr, 0)
        for i in range(len(path) - 2, -1, -1):
            node = path[i]
            guaranteed = node.guaranteed.get(fr, 0)
            above = node.usage.get(fr, 0) - guaranteed
            limit = node.borrowing_limit.get(fr)
            if limit is not None:
                lent = node.subtree_quota.get(fr, 0) - guaranteed
                left = min(left, lent - max(0, above) + limit)
            if above < 0:
                left -= above
        return left

    def potential_available(self, fr: Fr) -> int:
        """What this node could use if nobody used anything."""
        path = self.path
        most = path[-1].subtree_quota.get(fr, 0)
        for i in range(len(path) - 2, -1, -1):
            node = path[i]
            most += node.guaranteed.get(fr, 0)
            limit = node.borrowing_limit.get(fr)
            if limit is not None:
                most = min(most, node.subtree_quota.get(fr, 0) + limit)
        return most

    def local_available(self, fr: Fr) -> int:
        """The unused part of what this node does not lend."""
        return max(0, self.guaranteed.get(fr, 0) - self.usage.get(fr, 0))

    def borrowing_with(self, fr: Fr, amount: int) -> bool:
        return self.usage.get(fr, 0) + amount > self.subtree_quota.get(fr, 0)

    def is_within_nominal(self, frs: Iterable[Fr]) -> bool:
        usage, quota = self.usage, self.subtree_quota
        # A plain loop: every search for targets asks this of every queue of a cohort.
        for fr in frs:  # noqa: SIM110
            if usage.get(fr, 0) > quota.get(fr, 0):
                return False
        return True

    def fits(self, usage: Usage) -> bool:
        return all(amount <= max(0, self.available(fr)) for fr, amount in usage.items())

    def borrow_height(self, fr: Fr, amount: int) -> tuple[int, bool]:
        """How high in the tree `amount` more must borrow, and whether that place has a parent.

        0 means within the own quota. The second value says that preempting could help without
        borrowing from beyond: the subtree that fits is a proper part of the tree.
        """
        if self.parent is None or not self.borrowing_with(fr, amount):
            return 0, self.parent is not None
        rest = amount - self.local_available(fr)
        for node in self.path[1:]:
            if not node.borrowing_with(fr, rest):
                return node.height, node.parent is not None
            rest -= node.local_available(fr)
        return self.root.height, False

    # -- using --------------------------------------------------------------------------------

    def add(self, fr: Fr, amount: int) -> None:
        """Uses `amount` more here, or less when negative."""
        for node in self.path:
            usage = node.usage
            before = usage.get(fr, 0)
            after = before + amount
            usage[fr] = after
            guaranteed = node.guaranteed.get(fr, 0)
            if guaranteed == 0 and before >= 0 and after >= 0:
                continue
            amount = max(0, after - guaranteed) - max(0, before - guaranteed)
            if amount == 0:
                return

    def add_usage(self, usage: Usage) -> None:
        for fr, amount in usage.items():
            if amount:
                self.add(fr, amount)

    def remove_usage(self, usage: Usage) -> None:
        for fr, amount in usage.items():
            if amount:
                self.add(fr, -amount)


def attach(child: QuotaNode, parent: QuotaNode) -> None:
    child.parent = parent
    parent.children.append(child)


def would_cycle(child: QuotaNode, parent: QuotaNode) -> bool:
    node: QuotaNode | None = parent
    while node is not None:
        if node is child:
            return True
        node = node.parent
    return False


def settle(root: QuotaNode, own_usage: Mapping[str, Usage]) -> None:
    """Computes quotas, heights and usage of a whole tree after its shape or its quotas changed.

    `own_usage` is what each ClusterQueue uses, by name.
    """
    _settle(root, (), own_usage)
    root.generation += 1
    root.freed += 1


def _settle(node: QuotaNode, above: tuple[QuotaNode, ...], own_usage: Mapping[str, Usage]) -> None:
    node.path = (node, *above)
    node.lendable = None
    node.subtree_quota = dict(node.nominal)
    node.usage = {} if node.is_cohort else dict(own_usage.get(node.name, {}))
    for child in node.children:
        _settle(child, node.path, own_usage)
    if node.is_cohort:
        heights = [child.height + 1 for child in node.children]
        node.height = max(heights, default=0)
    for child in node.children:
        for fr, quota in child.subtree_quota.items():
            lent = quota - child.guaranteed.get(fr, 0)
            node.subtree_quota[fr] = min(MAX_AMOUNT, node.subtree_quota.get(fr, 0) + lent)
        for fr, used in child.usage.items():
            lent_usage = max(0, used - child.guaranteed.get(fr, 0))
            node.usage[fr] = node.usage.get(fr, 0) + lent_usage
    node.guaranteed = {
        fr: max(0, node.subtree_quota.get(fr, 0) - limit)
        for fr, limit in node.lending_limit.items()
        if fr in node.subtree_quota
    }


def roots(nodes: Iterable[QuotaNode]) -> Sequence[QuotaNode]:
    return [node for node in nodes if node.parent is None]
