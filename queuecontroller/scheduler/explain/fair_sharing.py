"""LocalQueues that are served before a workload's under admission fair sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuecontroller.scheduler.pending.fair import FairPendingQueue
from queuecontroller.scheduler.pending.fifo import PendingQueue
from queuecontroller.scheduler.quota.usage_history import usage_of


@dataclass(frozen=True, slots=True)
class Turn:
    local_queue: str
    usage: float
    """The usage figure, see `usage_history`; infinite for a LocalQueue of weight 0."""
    before: tuple[tuple[str, float], ...] = ()
    """LocalQueues with pending workloads and less usage, the least first."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "localQueue": self.local_queue,
            "usage": shown(self.usage),
            "servedBefore": [{"name": name, "usage": shown(used)} for name, used in self.before],
        }


def shown(usage: float) -> float | str:
    """The figure as JSON, which has no infinity; written as Kueue does."""
    return "+Inf" if usage == float("inf") else round(usage, 6)


def turn_of(line: PendingQueue | None, local_queue: str) -> Turn | None:
    """The LocalQueue's position by usage; None if usage does not order this ClusterQueue."""
    if not isinstance(line, FairPendingQueue):
        return None
    own = line.history.figure(local_queue)
    before = ((name, usage_of(figure)) for name, figure in line.local_queues() if figure < own)
    return Turn(local_queue, usage_of(own), tuple(before))
