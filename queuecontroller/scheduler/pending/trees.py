"""Which cohort trees changed since the last cycle, and whose heads to nominate in them."""

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
    """Whether a head of a tree is looked at again though nothing happened, since it was not
    judged by all its flavors at once."""

    NO = 0
    AT_LEISURE = 1
    """All flavors were tried since something happened. It begins anew in the next cycle, whenever
    that is; as in Kueue, since what other heads reserve meanwhile may differ."""
    AT_ONCE = 2


class Tree:
    """The ClusterQueues of one cohort tree. Trees share no quota, so a cycle passes over those
    where nothing happened since it last looked: their heads would end as they did."""

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
        "told",
        "wakes_ns",
    )

    def __init__(self, root: QuotaNode, settings: EngineSettings, room: Room | None) -> None:
        self.root = root
        self._settings = settings
        self._room = room
        self.members: list[PendingQueue] = []
        """Those that admit at all."""
        self.by_usage = False
        """Whether what LocalQueues have used decides anything in it."""
        self.pending_changed = True
        """Whether who is pending in it, or how, changed since the last look."""
        self.look_again = LookAgain.NO
        self.generation = -1
        """`root.generation` at the last look."""
        self.wakes_ns = NEVER_NS
        """When the first back-off in it ends, at the earliest."""
        self.protected_ns = NEVER_NS
        """Until when nobody can be preempted who was passed over for being admitted so lately."""
        self.known = -1
        """`root.freed` as the inadmissible see it: late by the requeue delay, if any."""
        self.due_ns: int | None = None
        """When they may know the rest."""
        self.told = -1
        """What they were told last."""
        self.lacks_room = False
        """Whether any of them was refused for want of room since."""
        self.room_freed = 0
        """`room.freed` as far as that concerns them."""

    def set_alarm(self) -> None:
        waiting = (queue.wakes_at_ns() for queue in self.members)
        self.wakes_ns = min((due for due in waiting if due is not None), default=NEVER_NS)

    def has_changed(self, now_ns: int) -> bool:
        """Whether its heads may end otherwise than at the last look."""
        if self.pending_changed and not any(self.members):
            self.pending_changed = False
        if not self.pending_changed and self.told < 0:
            return False  # nobody has waited in it yet
        return (
            self.pending_changed
            or self.generation != self.root.generation
            or self.told != self._freed(now_ns)
            or self.wakes_ns <= now_ns
            or self.protected_ns <= now_ns
        )

    def heads(self, now_ns: int) -> list[WorkloadInfo]:
        """Who is next in each of its queues, in the order in which they are judged."""
        if self.protected_ns <= now_ns:  # as if something had been freed
            self.protected_ns = NEVER_NS
            self.will_free(now_ns)
            self.root.generation += 1
            self.root.freed += 1
        freed = self._freed(now_ns)
        if freed != self.told:
            self.lacks_room = False  # all of them are looked at again
            if self._room is not None:
                self.room_freed = self._room.freed
                freed = self._freed(now_ns)
        self.told = freed
        found = [queue.head(self.told, now_ns) for queue in self.members]
        heads = [info for info in found if info is not None]
        self.generation = self.root.generation
        self.pending_changed = False
        # Whether all pods are ready is up to the workloads of all trees.
        looks_anyway = bool(heads) and self._settings.wait_for_pods_ready
        self.look_again = LookAgain.AT_LEISURE if looks_anyway else LookAgain.NO
        self.set_alarm()
        return _longest_deferred_first(heads)

    def _freed(self, now_ns: int) -> int:
        """`root.freed` as the inadmissible see it: late by the requeue delay. Where one of them
        lacks room, what was freed on the nodes counts too."""
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
        """Called before quota is freed: what is due by now does not include it."""
        delay_ns = self._settings.requeue_delay_ns
        if delay_ns:
            self._quota_freed(now_ns)
            if self.due_ns is None:
                self.due_ns = now_ns + delay_ns


def _longest_deferred_first(heads: list[WorkloadInfo]) -> list[WorkloadInfo]:
    """So that everybody's room is searched some day; the order of judging decides nothing else."""
    if not any(info.deferrals for info in heads):
        return heads
    return sorted(heads, key=lambda info: info.deferred_since if info.deferrals else NEVER_NS)
