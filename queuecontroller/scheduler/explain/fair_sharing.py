"""Whose LocalQueues are served before a workload's, where what they have used decides."""

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
    """Its figure, see `usage_history`; infinite for a LocalQueue of weight 0."""
    before: tuple[tuple[str, float], ...] = ()
    """Those with work waiting that have used less, the least first."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "localQueue": self.local_queue,
            "usage": shown(self.usage),
            "servedBefore": [{"name": name, "usage": shown(used)} for name, used in self.before],
        }


def shown(usage: float) -> float | str:
    """JSON has no infinity; as Kueue writes it."""
    return "+Inf" if usage == float("inf") else round(usage, 6)


def turn_of(line: PendingQueue | None, local_queue: str) -> Turn | None:
    """None where usage decides nothing."""
    if not isinstance(line, FairPendingQueue):
        return None
    own = line.history.figure(local_queue)
    before = ((name, usage_of(figure)) for name, figure in line.local_queues() if figure < own)
    return Turn(local_queue, usage_of(own), tuple(before))
