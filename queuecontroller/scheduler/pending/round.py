"""The cohort trees in the order in which cycles evaluate them: each cycle begins where the last one
stopped, so that every tree is evaluated however many there are."""

from __future__ import annotations

from collections.abc import Iterator

from queuecontroller.scheduler.pending.trees import NEVER_NS, Tree
from queuecontroller.scheduler.quota.tree import QuotaNode


class Round:
    def __init__(self) -> None:
        self.trees: dict[QuotaNode, Tree] = {}
        """Trees by root."""
        self._order: list[Tree] = []
        self._next = 0

    def __iter__(self) -> Iterator[Tree]:
        return iter(self._order)

    def renew(self, trees: dict[QuotaNode, Tree]) -> None:
        self.trees = trees
        self._order, self._next = list(trees.values()), 0
        for tree in self._order:
            tree.set_alarm()

    def in_turn(self) -> Iterator[Tree]:
        """Each tree once. The one at which the caller stops is the first of the next cycle."""
        for _ in range(len(self._order)):
            yield self._order[self._next]
            self._next = (self._next + 1) % len(self._order)

    def begin_with(self, tree: Tree) -> None:
        """Make the tree the first one of the next cycle."""
        self._next = self._order.index(tree)

    def next_wake_ns(self) -> int | None:
        """Time at which a cycle may decide something without any event, in ns; None: never."""
        soonest = min((tree.wakes_ns for tree in self._order), default=NEVER_NS)
        for tree in self._order:
            if tree.due_ns is not None and tree.due_ns < soonest:
                soonest = tree.due_ns
            if tree.protected_ns < soonest:
                soonest = tree.protected_ns
        return None if soonest == NEVER_NS else soonest
