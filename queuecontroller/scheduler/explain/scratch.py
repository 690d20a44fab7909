"""A copy of one ClusterQueue for what-if questions: its path through the cohort tree is copied with
all figures, so the live tree is only read. Questions are answered by the scheduler's own flavor
search, so an explanation cannot differ from the decision. Preemption is left out: the question is
what a workload lacks without any victims."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from queuecontroller.scheduler.flavors import FlavorAssigner
from queuecontroller.scheduler.model.assignment import Assignment, PreemptionMode
from queuecontroller.scheduler.model.flavor_resources import Fr, Usage
from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import BEGIN, WorkloadInfo
from queuecontroller.scheduler.quota.cluster_queue import ClusterQueueState
from queuecontroller.scheduler.quota.tree import QuotaNode


class _NoCandidates:
    """Preemption oracle that finds no candidates."""

    def simulate(
        self, queue: ClusterQueueState, info: WorkloadInfo, fr: Fr, amount: int
    ) -> tuple[PreemptionMode, int]:
        return PreemptionMode.NO_CANDIDATES, queue.node.borrow_height(fr, amount)[0]


class Scratch:
    def __init__(self, live: ClusterQueueState, settings: EngineSettings) -> None:
        self.queue = copy(live)
        self.queue.node = self.node = _copied(live.node)
        self.assigner = FlavorAssigner(self.queue, _NoCandidates(), settings)

    def assign(self, info: WorkloadInfo, counts: Sequence[int] | None = None) -> Assignment:
        fresh = copy(info)
        fresh.last_assignment = BEGIN  # all flavors, wherever the last look ended
        return self.assigner.assign(fresh, counts)

    def release(self, usage: Usage) -> None:
        """Release the usage of a workload, as if it had finished."""
        self.node.remove_usage(usage)

    def give(self, fr: Fr, amount: int) -> None:
        """Raise the nominal quota of the ClusterQueue by this amount. The available quota and the
        borrowing height are then the same as with so much less in use."""
        self.node.add(fr, -amount)
        self.node.cell(fr).potential += amount


def _copied(node: QuotaNode) -> QuotaNode:
    parent: QuotaNode | None = None
    for one in reversed(node.path):
        mine = copy(one)
        mine.parent, mine.children, mine.borrowers = parent, [], {}
        mine.path = (mine, *(parent.path if parent is not None else ()))
        mine.cells = {}
        for fr, cell in one.cells.items():
            known = mine.cells[fr] = copy(cell)
            known.borrowers = None
            known.up = parent.cell(fr) if parent is not None else None
        parent = mine
    assert parent is not None, "a path holds the node itself"
    return parent
