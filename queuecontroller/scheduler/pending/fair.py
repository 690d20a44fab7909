"""The pending workloads of a ClusterQueue that orders its LocalQueues by recorded usage.

There is one queue for each LocalQueue. The head is the head of the queue whose LocalQueue has used
least; among equals, priority and time decide as everywhere. Only a workload that waits for its
victims goes first regardless of usage. (In Kueue a workload of a LocalQueue with less usage may
take what was freed for it; it would preempt that one again, and so on until the order of usage has
changed.)

A shape that cannot start in one queue cannot start in another, as in `pending`: workloads of any
namespace that are no older than one that failed are not evaluated until quota is freed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queuecontroller.scheduler.model.objects import QueueingStrategy, WorkloadKey
from queuecontroller.scheduler.model.workload_info import Shape, WorkloadInfo
from queuecontroller.scheduler.pending.fifo import Order, PendingQueue, Why, order_of
from queuecontroller.scheduler.quota.usage_history import UsageHistory

_MAX_KINDS: Final = 1000
_SETTLED_HALF_LIVES: Final = 256
"""Number of half-lives after which no history changes any more, see `decay`."""


class FairPendingQueue(PendingQueue):
    __slots__ = (
        "_comings",
        "_failed",
        "_first",
        "_idle",
        "_kind_of",
        "_kinds",
        "_lines_of",
        "_local_queue_of",
        "_reported",
        "_sorted",
        "_sorted_at",
        "history",
    )

    def __init__(
        self,
        name: str,
        strategy: QueueingStrategy,
        history: UsageHistory,
        unreported: list[WorkloadKey] | None = None,
    ) -> None:
        super().__init__(name, strategy, unreported)
        self.history: UsageHistory = history
        self._lines_of: dict[str, PendingQueue] = {}
        """Queues by LocalQueue; only those with pending workloads."""
        self._local_queue_of: dict[WorkloadKey, str] = {}
        self._first: WorkloadKey | None = None
        """The workload that waits for its victims."""
        self._kinds: dict[Shape, int] = {}
        """A number for each shape, without its namespace."""
        self._kind_of: dict[WorkloadKey, int] = {}
        self._failed: dict[int, tuple[int, Why]] = {}
        """The oldest workload by kind that could not start since quota was freed last: its time and
        reason."""
        self._idle: set[str] = set()
        """Queues without a head since then."""
        self._reported = -1
        self._sorted: list[str] = []
        """LocalQueues in the order in which they are served."""
        self._sorted_at = (-1, 0)
        self._comings = 0
        """Counter that grows when a queue is added or removed."""

    def __len__(self) -> int:
        return len(self._local_queue_of)

    def __contains__(self, key: object) -> bool:
        return key in self._local_queue_of

    def get(self, key: WorkloadKey) -> WorkloadInfo | None:
        queue = self._local_queue_of.get(key)
        return self._lines_of[queue].get(key) if queue is not None else None

    # -- coming and going -------------------------------------------------------------------------

    def push(self, info: WorkloadInfo, not_before_ns: int = 0, now_ns: int = 0) -> None:
        name = info.workload.local_queue
        if self._local_queue_of.get(info.key, name) != name:
            self.remove(info.key)
        line = self._lines_of.get(name)
        if line is None:
            line = self._lines_of[name] = PendingQueue(name, self.strategy, self.unreported)
            self._comings += 1
        self._local_queue_of[info.key] = name
        self._kind_of[info.key] = self._kind(info)
        self._idle.discard(name)
        line.push(info, not_before_ns, now_ns)

    def _kind(self, info: WorkloadInfo) -> int:
        if len(self._kinds) > _MAX_KINDS + 4 * len(self):  # most of them are of the past
            self._kinds.clear()
            self._failed.clear()
            for line in self._lines_of.values():
                for one in line.everyone():
                    self._kind_of[one.key] = self._kind(one)
        priority, _, *rest = info.shape
        return self._kinds.setdefault((priority, *rest), len(self._kinds))

    def remove(self, key: WorkloadKey) -> WorkloadInfo | None:
        name = self._local_queue_of.pop(key, None)
        if name is None:
            return None
        if self._first == key:
            self._first = None
        line = self._lines_of[name]
        info = line.remove(key)
        del self._kind_of[key]
        if not len(line):
            del self._lines_of[name]
            self._comings += 1
        return info

    # -- the head ---------------------------------------------------------------------------------

    def head(self, freed: int, now_ns: int) -> WorkloadInfo | None:
        if freed != self._reported:
            self._reported = freed
            self._look_anew()
        if self._first is not None:
            line = self._lines_of[self._local_queue_of[self._first]]
            found = line.head(freed, now_ns)
            if found is not None and found.key == self._first:
                return found
        best: WorkloadInfo | None = None
        least = 0
        figure, idle = self.history.figure, self._idle
        for name in self._in_turn():
            if name in idle:
                continue
            if best is not None and figure(name) > least:
                break
            found = self._head_of(name, freed, now_ns)
            if found is not None and (best is None or order_of(found) < order_of(best)):
                best, least = found, figure(name)
        return best

    def _head_of(self, name: str, freed: int, now_ns: int) -> WorkloadInfo | None:
        line = self._lines_of[name]
        while (found := line.head(freed, now_ns)) is not None:
            failed = self._failed.get(self._kind_of[found.key])
            if failed is None or found.order_ns < failed[0]:
                return found
            line.mark_shape_inadmissible(found, failed[1])
        if line.wakes_at_ns() is None:
            self._idle.add(name)
        return None

    def _in_turn(self) -> list[str]:
        at = (self.history.version, self._comings)
        if at != self._sorted_at:
            if at[1] != self._sorted_at[1]:
                self._sorted = list(self._lines_of)
            self._sorted.sort(key=self.history.figure)
            self._sorted_at = at
        return self._sorted

    def _look_anew(self) -> None:
        self._failed.clear()
        self._idle.clear()

    def wakes_at_ns(self) -> int | None:
        found = [line.wakes_at_ns() for line in self._lines_of.values()]
        found.append(self._reorders_at_ns())
        return min((due for due in found if due is not None), default=None)

    def _reorders_at_ns(self) -> int | None:
        """Time at which another LocalQueue precedes that of a head that keeps its place, in ns;
        None: never. The difference of two histories is a straight line in 2**-(time / half-life),
        so it changes its sign once at most: not at all when it has the same sign at the end of
        time."""
        if self.strategy is not QueueingStrategy.STRICT_FIFO:
            return None  # a head that cannot start blocks no other
        figure, in_the_end = self.history.figure, self.history.figure_in_the_end
        lines = self._lines_of.items()
        heads = ((name, head) for name, line in lines if (head := line.head(line.freed, 0)))
        ranked = sorted((figure(name), order_of(head), name) for name, head in heads)
        if len(ranked) < 2:
            return None
        first = ranked[0]
        last = (in_the_end(first[2]), *first[1:])
        overtakers = [one for one in ranked[1:] if (in_the_end(one[2]), *one[1:]) < last]
        times = [self._overtakes_at_ns(first, one) for one in overtakers]
        return min((due for due in times if due is not None), default=None)

    def _overtakes_at_ns(
        self, first: tuple[int, Order, str], other: tuple[int, Order, str]
    ) -> int | None:
        """The first sampling moment at which `other` precedes `first`, in ns."""
        history = self.history

        def overtaken(samples: int) -> bool:
            at_ns = history.sampling_after_ns(history.sampled_ns, samples)
            mine = history.figure_at(first[2], at_ns)
            theirs = history.figure_at(other[2], at_ns)
            return (theirs, *other[1:]) < (mine, *first[1:])

        interval_ns = history.sampling_after_ns(0)
        most = _SETTLED_HALF_LIVES * history.settings.half_life_ns // interval_ns + 1
        high = 1
        while not overtaken(high):
            if high > most:
                return None
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if overtaken(middle) else (middle, high)
        return history.sampling_after_ns(history.sampled_ns, high)

    # -- after an evaluation ----------------------------------------------------------------------

    def _line(self, info: WorkloadInfo) -> PendingQueue:
        return self._lines_of[self._local_queue_of[info.key]]

    def mark_shape_inadmissible(self, info: WorkloadInfo, why: Why) -> None:
        kind = self._kind_of[info.key]
        oldest_ns, _ = self._failed.get(kind, (info.order_ns, why))
        self._failed[kind] = min(info.order_ns, oldest_ns), why
        self._line(info).mark_shape_inadmissible(info, why)

    def why(self, key: WorkloadKey) -> Why | None:
        queue = self._local_queue_of.get(key)
        return self._lines_of[queue].why(key) if queue is not None else None

    def mark_inadmissible(self, info: WorkloadInfo) -> None:
        self._line(info).mark_inadmissible(info)

    def keep_first(self, info: WorkloadInfo) -> None:
        if self._first is not None and self._first != info.key:
            line = self._lines_of[self._local_queue_of[self._first]]
            line.keep_none_first()
        self._first = info.key
        self._line(info).keep_first(info)

    def requeue_inadmissible(self) -> None:
        self._look_anew()
        for line in self._lines_of.values():
            line.requeue_inadmissible()

    # -- reading ----------------------------------------------------------------------------------

    def everyone(self) -> list[WorkloadInfo]:
        figure = self.history.figure
        every = (
            (figure(name), order_of(info), info)
            for name, line in self._lines_of.items()
            for info in line.everyone()
        )
        return [info for _, _, info in sorted(every, key=lambda entry: entry[:2])]

    def unordered(self) -> Iterator[WorkloadInfo]:
        return (info for line in self._lines_of.values() for info in line.unordered())

    def is_inadmissible(self, info: WorkloadInfo) -> bool:
        if self._line(info).is_inadmissible(info):
            return True
        failed = self._failed.get(self._kind_of[info.key])
        return failed is not None and info.order_ns >= failed[0] and self._first != info.key

    def local_queues(self) -> Iterator[tuple[str, int]]:
        """LocalQueues with pending workloads in the order they are served, and their figures."""
        figure = self.history.figure
        return (
            (name, figure(name)) for name in sorted(self._lines_of, key=lambda n: (figure(n), n))
        )
