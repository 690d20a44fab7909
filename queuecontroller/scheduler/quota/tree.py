"""The cohort tree: the quota each ClusterQueue may still use of each (flavor, resource).

A node keeps `guaranteed` (its subtree's quota minus the lending limit, never below 0) for itself
and lends the rest to its parent; usage above `guaranteed` therefore counts at the parent too. Every
change of usage is its own inverse when repeated with the opposite sign, in any order, because a
parent's usage is always the sum over its children of max(0, usage - guaranteed): what-if simulation
is a list of additions to take back and never a copy.

(flavor, resource) pairs are numbered once in a `FlavorResources`; trees and usages refer to these
numbers. A node's data for one pair is a `Cell`, linked to the parent's: every query below runs
millions of times, and so walks up a few objects instead of looking into many tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from queuecontroller.scheduler.model.flavor_resources import Fr, Usage
from sluicecommon.kubernetes.quantity import MAX_AMOUNT


class Cell:
    """One (flavor, resource) of one node: its quotas and its current usage."""

    __slots__ = ("borrowers", "guaranteed", "lent", "limit", "potential", "quota", "up", "used")

    def __init__(self, node: QuotaNode, fr: Fr, up: Cell | None) -> None:
        self.up = up
        self.used = 0
        self.quota = node.subtree_quota.get(fr, 0)
        self.guaranteed = node.guaranteed.get(fr, 0)
        self.lent = self.quota - self.guaranteed
        self.limit = node.borrowing_limit.get(fr)
        self.potential = self.quota
        self.borrowers: dict[QuotaNode, None] | None = None
        """Borrowers of the whole tree; the cells of its ClusterQueues maintain it."""
        if up is not None:
            self.potential = up.potential + self.guaranteed
            if self.limit is not None:
                self.potential = min(self.potential, self.quota + self.limit)
            if not node.is_cohort:
                self.borrowers = node.root.borrowers.setdefault(fr, {})


class QuotaNode:
    """One ClusterQueue or cohort in the tree."""

    __slots__ = (
        "borrowers",
        "borrowing_limit",
        "cells",
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
        self.cells: dict[Fr, Cell] = {}
        self.borrowers: dict[Fr, dict[QuotaNode, None]] = {}
        """Kept at roots: the ClusterQueues that use more than their own quota, by pair."""
        self.lendable: dict[str, int] | None = None
        """The most this node could use by resource, see `shares`. None until computed."""
        self.path: tuple[QuotaNode, ...] = (self,)
        """Nodes from this one up to the root."""
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

    def cell(self, fr: Fr) -> Cell:
        found = self.cells.get(fr)
        if found is None:
            up = None if self.parent is None else self.parent.cell(fr)
            found = self.cells[fr] = Cell(self, fr, up)
        return found

    @property
    def usage(self) -> dict[Fr, int]:
        """Usage here or lent from here, without zeros; for display."""
        return {fr: cell.used for fr, cell in self.cells.items() if cell.used}

    def used(self, fr: Fr) -> int:
        cell = self.cells.get(fr)
        return 0 if cell is None else cell.used

    # -- what is left -----------------------------------------------------------------------

    def available(self, fr: Fr) -> int:
        """The amount this node may still use; negative when quotas were lowered below the usage.

        From the root down each node passes on min(what is left above it, the rest of its borrowing
        limit) plus what it does not lend. Walking up instead, `own` and `most` are that function of
        what is left above, composed so far: min(left above + own, most).
        """
        cell = self.cells.get(fr) or self.cell(fr)
        own = 0
        most: int | None = None
        while cell.up is not None:
            above = cell.used - cell.guaranteed
            if above < 0:
                own -= above
                above = 0
            if cell.limit is not None:
                here = cell.lent - above + cell.limit + own
                if most is None or here < most:
                    most = here
            cell = cell.up
        left = cell.quota - cell.used + own
        return left if most is None or left < most else most

    def potential_available(self, fr: Fr) -> int:
        """The amount this node could use if nothing else used any."""
        return (self.cells.get(fr) or self.cell(fr)).potential

    def local_available(self, fr: Fr) -> int:
        """The unused part of what this node does not lend."""
        cell = self.cells.get(fr) or self.cell(fr)
        return max(0, cell.guaranteed - cell.used)

    def borrowing_with(self, fr: Fr, amount: int) -> bool:
        cell = self.cells.get(fr) or self.cell(fr)
        return cell.used + amount > cell.quota

    def is_within_nominal(self, frs: Iterable[Fr]) -> bool:
        cells = self.cells
        for fr in frs:
            cell = cells.get(fr)
            if cell is not None and cell.used > cell.quota:
                return False
        return True

    def borrowing(self, frs: Iterable[Fr]) -> Sequence[QuotaNode]:
        """At a root: the ClusterQueues that use more than their own quota of any of these."""
        found = [self.borrowers[fr] for fr in frs if self.borrowers.get(fr)]
        if len(found) == 1:
            return list(found[0])
        return list(dict.fromkeys(node for nodes in found for node in nodes))

    def fits(self, usage: Usage) -> bool:
        return all(amount <= max(0, self.available(fr)) for fr, amount in usage.items())

    def borrow_height(self, fr: Fr, amount: int) -> tuple[int, bool]:
        """The height in the tree at which `amount` more must borrow, and True if that node has a
        parent. 0 means within the own quota. The second value means that preempting could help
        without borrowing from beyond: the subtree that fits is a proper part of the tree."""
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
        cell = self.cells.get(fr) or self.cell(fr)
        before = cell.used
        cell.used = after = before + amount
        borrowers = cell.borrowers
        if borrowers is not None:
            if after > cell.quota:
                borrowers[self] = None
            elif before > cell.quota:
                del borrowers[self]
        while True:
            guaranteed = cell.guaranteed
            if guaranteed or before < 0 or after < 0:
                amount = max(0, after - guaranteed) - max(0, before - guaranteed)
                if amount == 0:
                    return
            up = cell.up
            if up is None:
                return
            cell = up
            before = cell.used
            cell.used = after = before + amount

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
    """Compute quotas, heights and usage of a whole tree after its shape or its quotas changed.
    `own_usage` is the usage of each ClusterQueue, by name."""
    root.borrowers = {}
    usage = _settle(root, (), own_usage, {})
    for node in root.subtree():  # parents first, whose cells the others' link to
        node.cells = {}
        for fr in node.subtree_quota:
            node.cell(fr)
        for fr, used in usage[node].items():
            cell = node.cell(fr)
            cell.used = used
            if cell.borrowers is not None and used > cell.quota:
                cell.borrowers[node] = None
    root.generation += 1
    root.freed += 1


def _settle(
    node: QuotaNode,
    above: tuple[QuotaNode, ...],
    own_usage: Mapping[str, Usage],
    usage: dict[QuotaNode, dict[Fr, int]],
) -> Mapping[QuotaNode, Usage]:
    node.path = (node, *above)
    node.lendable = None
    node.subtree_quota = dict(node.nominal)
    mine = usage[node] = {} if node.is_cohort else dict(own_usage.get(node.name, {}))
    for child in node.children:
        _settle(child, node.path, own_usage, usage)
    if node.is_cohort:
        heights = [child.height + 1 for child in node.children]
        node.height = max(heights, default=0)
    for child in node.children:
        for fr, quota in child.subtree_quota.items():
            lent = quota - child.guaranteed.get(fr, 0)
            node.subtree_quota[fr] = min(MAX_AMOUNT, node.subtree_quota.get(fr, 0) + lent)
        for fr, used in usage[child].items():
            lent_usage = max(0, used - child.guaranteed.get(fr, 0))
            mine[fr] = mine.get(fr, 0) + lent_usage
    node.guaranteed = {
        fr: max(0, node.subtree_quota.get(fr, 0) - limit)
        for fr, limit in node.lending_limit.items()
        if fr in node.subtree_quota
    }
    return usage


def roots(nodes: Iterable[QuotaNode]) -> Sequence[QuotaNode]:
    return [node for node in nodes if node.parent is None]
