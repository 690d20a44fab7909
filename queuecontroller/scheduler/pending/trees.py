"""Cohort trees that changed since the last cycle, and the heads to nominate in them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from queuecontroller.scheduler.model.settings import EngineSettings
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.pending.fifo import PendingQueue
from queuecontroller.scheduler.preemption.room import Room
from queuecontroller.scheduler.quota.tree import QuotaNode

NEVER_NS: Final = 1 << 63


class LookAgain(IntEnum):
    """Decides if a head is evaluated again without a change, since not all of its flavors were
    tried."""

    NO = 0
    AT_LEISURE = 1
    """All flavors were tried since the last change. The search starts over in the next cycle,
    whenever that is; as in Kueue, since what other heads reserve meanwhile may differ."""
    AT_ONCE = 2


class Tree:
    """The ClusterQueues of one cohort tree. Trees share no quota, so a cycle skips those in which
    nothing changed since their last evaluation: their heads would have the same result."""

    __slots__ = (
        "_room",
        "_settings",
        "by_usage",
        "due_ns",
        "generation",
        "known",
        "lacks_room",
        "look_again",
        "members",
        "pending_changed",
        "protected_ns",
        "room_freed",
        "root",
        "seen_freed",
        "wakes_ns",
    )

    def __init__(self, root: QuotaNode, settings: EngineSettings, room: Room | None) -> None:
        self.root = root
        self._settings = settings
        self._room = room
        self.members: list[PendingQueue] = []
        """Queues of the ClusterQueues that are active."""
        self.by_usage = False
        """True if recorded usage decides anything in the tree."""
        self.pending_changed = True
        """True if pending workloads in it changed since the last evaluation."""
        self.look_again = LookAgain.NO
        self.generation = -1
        """`root.generation` at the last evaluation."""
        self.wakes_ns = NEVER_NS
        """Lower bound of the time at which its first back-off ends, in ns."""
        self.protected_ns = NEVER_NS
        """Time in ns at which the protection of the first candidate ends that was passed over for
        it."""
        self.known = -1
        """`root.freed` as inadmissible workloads see it: late by the requeue delay, if any."""
        self.due_ns: int | None = None
        """Time in ns at which they see the current value."""
        self.seen_freed = -1
        """The value they saw last."""
        self.lacks_room = False
        """True if any of them was refused for lack of room since then."""
        self.room_freed = 0
        """`room.freed` as far as it concerns them."""

    def set_alarm(self) -> None:
        waiting = (queue.wakes_at_ns() for queue in self.members)
        self.wakes_ns = min((due for due in waiting if due is not None), default=NEVER_NS)

    def has_changed(self, now_ns: int) -> bool:
        """True if its heads may have another result than at the last evaluation."""
        if self.pending_changed and not any(self.members):
            self.pending_changed = False
        if not self.pending_changed and self.seen_freed < 0:
            return False  # the tree had no pending workloads yet
        return (
            self.pending_changed
            or self.generation != self.root.generation
            or self.seen_freed != self._freed(now_ns)
            or self.wakes_ns <= now_ns
            or self.protected_ns <= now_ns
        )

    def heads(self, now_ns: int) -> list[WorkloadInfo]:
        """The next workload of each of its queues, in the order in which they are evaluated."""
        if self.protected_ns <= now_ns:  # as if something had been freed
            self.protected_ns = NEVER_NS
            self.will_free(now_ns)
            self.root.generation += 1
            self.root.freed += 1
        freed = self._freed(now_ns)
        if freed != self.seen_freed:
            self.lacks_room = False  # all of them are evaluated again
            if self._room is not None:
                self.room_freed = self._room.freed
                freed = self._freed(now_ns)
        self.seen_freed = freed
        found = [queue.head(self.seen_freed, now_ns) for queue in self.members]
        heads = [info for info in found if info is not None]
        self.generation = self.root.generation
        self.pending_changed = False
        # The workloads of all trees decide if all pods are ready.
        looks_anyway = bool(heads) and self._settings.wait_for_pods_ready
        self.look_again = LookAgain.AT_LEISURE if looks_anyway else LookAgain.NO
        self.set_alarm()
        return _longest_deferred_first(heads)

    def _freed(self, now_ns: int) -> int:
        """`root.freed` as inadmissible workloads see it: late by the requeue delay. Where one of
        them lacks room, what was freed on the nodes counts too."""
        if self.lacks_room and self._room is not None:
            self.room_freed = self._room.freed
        return self.room_freed + self._quota_freed(now_ns)

    def _quota_freed(self, now_ns: int) -> int:
        delay_ns = self._settings.requeue_delay_ns
        if delay_ns == 0:
            return self.root.freed
        if self.known < 0:  # a tree that was just built changed as well
            self.known, self.due_ns = self.root.freed, now_ns + delay_ns
        elif self.due_ns is not None and self.due_ns <= now_ns:
            self.known, self.due_ns = self.root.freed, None
        return self.known

    def will_free(self, now_ns: int) -> None:
        """Record that quota is about to be freed: what is due by now does not include it."""
        delay_ns = self._settings.requeue_delay_ns
        if delay_ns:
            self._quota_freed(now_ns)
            if self.due_ns is None:
                self.due_ns = now_ns + delay_ns


def _longest_deferred_first(heads: list[WorkloadInfo]) -> list[WorkloadInfo]:
    """Sort the longest deferred first, so that room is searched for each of them in time; the order
    of evaluation decides nothing else."""
    if not any(info.deferrals for info in heads):
        return heads
    return sorted(heads, key=lambda info: info.deferred_since if info.deferrals else NEVER_NS)
