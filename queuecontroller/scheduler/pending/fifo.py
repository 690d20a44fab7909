"""The workloads one ClusterQueue still has to start, in the order it would start them.

Order is priority, then time. Workloads of one shape (see `WorkloadInfo.shape`) form one line, and
the lines compete by their first. When the first of a line cannot start under BestEffortFIFO, the
whole line is inadmissible until quota may have become free: no workload behind it could start
either, so nothing is evaluated that cannot have changed. Under StrictFIFO the head stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from queuecontroller.scheduler.model.objects import QueueingStrategy, WorkloadKey
from queuecontroller.scheduler.model.workload_info import Shape, WorkloadInfo
from queuecontroller.scheduler.pending.places import Places
from queuecontroller.scheduler.quota.usage_history import UsageHistory

Order = tuple[int, int, str]
"""Negative priority, time, key."""
Why = tuple[str, str]
"""Reason and message."""
_MANY: Final = 64


def order_of(info: WorkloadInfo) -> Order:
    return (-info.priority, info.order_ns, info.key)


class Line:
    """Workloads of one shape. Removed ones are dropped when they reach the front."""

    __slots__ = ("added", "heap", "inadmissible_since", "shape", "why")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.heap: list[tuple[Order, int, WorkloadInfo]] = []
        self.inadmissible_since = _NEVER
        """The round in which it became inadmissible; a new round makes it pending again."""
        self.why: Why | None = None
        """Reason why its first workload could not start at the last evaluation."""
        self.added: list[WorkloadKey] = []
        """Workloads added since then, some of which may have been removed."""


_NEVER: Final = -1

_Entry = tuple[Order, int, Line]
"""A heap entry; stale when the line has changed its first workload or its heap."""


class PendingQueue:
    history: UsageHistory | None = None
    """Usage that orders the LocalQueues, where admission fair sharing does, see `pending.fair`."""

    __slots__ = (
        "_active",
        "_by_key",
        "_count",
        "_freed",
        "_inadmissible",
        "_inadmissible_lines",
        "_lines",
        "_places",
        "_resting",
        "_round",
        "_sticky",
        "_waiting",
        "name",
        "strategy",
        "unreported",
    )

    def __init__(
        self, name: str, strategy: QueueingStrategy, unreported: list[WorkloadKey] | None = None
    ) -> None:
        """`unreported` collects workloads of the same shape as one that could not start, not yet
        reported."""
        self.name = name
        self.strategy = strategy
        self.unreported: list[WorkloadKey] = unreported if unreported is not None else []
        self._by_key: dict[WorkloadKey, WorkloadInfo] = {}
        self._places: Places | None = None
        """Positions of the workloads; None until requested, since the scheduler needs none."""
        self._lines: dict[Shape, Line] = {}
        self._active: list[_Entry] = []
        """Heap of lines by their first workload."""
        self._inadmissible_lines: list[_Entry] = []
        """Heap of the lines that became inadmissible in this round, so that a new round begins
        without a scan of all lines."""
        self._round = 0
        """Counter that grows when all inadmissible workloads are requeued."""
        self._inadmissible: dict[WorkloadKey, WorkloadInfo] = {}
        """Workloads that are inadmissible for reasons other than their shape."""
        self._waiting: list[tuple[int, int, WorkloadInfo]] = []
        """Heap of workloads in back-off, by the time it ends."""
        self._resting: set[WorkloadKey] = set()
        """Keys of the workloads in back-off."""
        self._sticky: WorkloadKey | None = None
        self._freed = _NEVER
        self._count = 0
        """Counter that makes every heap entry distinct, since a stale one may have a live one's
        order."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def get(self, key: WorkloadKey) -> WorkloadInfo | None:
        return self._by_key.get(key)

    # -- coming and going -------------------------------------------------------------------------

    def push(self, info: WorkloadInfo, not_before_ns: int = 0, now_ns: int = 0) -> None:
        """Add a workload or its new version; it is pending once its back-off ends."""
        old = self._by_key.get(info.key)
        if old is not None:
            self.remove(info.key)
        self._by_key[info.key] = info
        if self._places is not None:
            self._places.add(info.key, order_of(info))
        if not_before_ns > now_ns:
            heapq.heappush(self._waiting, (not_before_ns, self._next(), info))
            self._resting.add(info.key)
        else:
            self._stand(info)

    def remove(self, key: WorkloadKey) -> WorkloadInfo | None:
        self._inadmissible.pop(key, None)
        self._resting.discard(key)
        if self._sticky == key:
            self._sticky = None
        if self._places is not None:
            self._places.discard(key)
        return self._by_key.pop(key, None)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _stand(self, info: WorkloadInfo) -> None:
        shape = info.shape
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = Line(shape)
        else:
            info.share_shape(line.shape)
        heapq.heappush(line.heap, (order_of(info), self._next(), info))
        line.added.append(info.key)
        if len(line.added) > 2 * len(line.heap) + _MANY:
            line.added = [key for key in line.added if key in self._by_key]
        self._drop_gone(line)
        # An older workload of a shape that could not start may have preemption candidates that the
        # younger one had not, so it is evaluated; a younger one cannot have a better result.
        if line.heap[0][2] is info:
            line.inadmissible_since = _NEVER
            self._announce(line)

    def _announce(self, line: Line) -> None:
        heapq.heappush(self._active, (line.heap[0][0], self._next(), line))

    def _is_inadmissible_line(self, line: Line) -> bool:
        return line.inadmissible_since == self._round

    # -- the head ---------------------------------------------------------------------------------

    def head(self, freed: int, now_ns: int) -> WorkloadInfo | None:
        """The next workload. `freed` is the counter of freed quota, see `QuotaNode.freed`."""
        if self._waiting:
            self._wake(now_ns)
        if freed != self._freed:
            self._freed = freed
            self.requeue_inadmissible()
        if self._sticky is not None:
            sticky = self._by_key.get(self._sticky)
            if sticky is None:
                self._sticky = None
            elif not self.is_inadmissible(sticky):
                return sticky
        active = self._active
        while active:
            order, _, line = active[0]
            if not self._is_inadmissible_line(line):
                self._drop_gone(line)
                if line.heap and line.heap[0][0] == order:
                    return line.heap[0][2]
            heapq.heappop(active)
            if self._is_inadmissible_line(line):
                continue
            if line.heap:
                self._announce(line)
            elif self._lines.get(line.shape) is line:
                del self._lines[line.shape]
        return None

    @property
    def freed(self) -> int:
        """The value of `freed` at the last call of `head`."""
        return self._freed

    def _drop_gone(self, line: Line) -> None:
        heap = line.heap
        while heap:
            info = heap[0][2]
            if self._by_key.get(info.key) is info and info.key not in self._inadmissible:
                return
            heapq.heappop(heap)

    def _wake(self, now_ns: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= now_ns:
            info = heapq.heappop(waiting)[2]
            if self._by_key.get(info.key) is info:
                self._resting.discard(info.key)
                self._stand(info)

    def wakes_at_ns(self) -> int | None:
        """Time at which the next back-off ends, in ns; None without any."""
        return self._waiting[0][0] if self._waiting else None

    # -- after an evaluation ----------------------------------------------------------------------

    def mark_shape_inadmissible(self, info: WorkloadInfo, why: Why) -> None:
        """Mark the workload and all others of its shape inadmissible until quota is freed."""
        line = self._lines.get(info.shape)
        if line is None:
            return
        if not self._is_inadmissible_line(line):
            line.inadmissible_since = self._round
            heapq.heappush(self._inadmissible_lines, (order_of(info), self._next(), line))
        self.unreported.extend(key for key in line.added if key in self._by_key)
        line.added, line.why = [], why

    def why(self, key: WorkloadKey) -> Why | None:
        """Reason why a workload of its shape could not start at the last evaluation; None without
        one."""
        info = self._by_key.get(key)
        line = self._lines.get(info.shape) if info is not None else None
        return line.why if line is not None else None

    def mark_inadmissible(self, info: WorkloadInfo) -> None:
        """Mark this workload inadmissible until it or its queue changes."""
        self._inadmissible[info.key] = info

    def keep_first(self, info: WorkloadInfo) -> None:
        """Keep the workload ahead of all others while it waits for its victims: otherwise another
        one takes what is freed for it, and it preempts again. This also holds if it became
        inadmissible meanwhile, because another queue's workload took the quota: once it is
        requeued, it is the first."""
        self._sticky = info.key

    def keep_none_first(self) -> None:
        self._sticky = None

    def requeue_inadmissible(self) -> None:
        """Requeue all inadmissible workloads."""
        self._round += 1
        fewer, more = sorted((self._active, self._inadmissible_lines), key=len)
        for entry in fewer:
            heapq.heappush(more, entry)
        self._active, self._inadmissible_lines = more, []
        if self._inadmissible:
            again = list(self._inadmissible.values())
            self._inadmissible.clear()
            for info in again:
                self._stand(info)

    # -- reading ----------------------------------------------------------------------------------

    def everyone(self) -> list[WorkloadInfo]:
        """All pending workloads in queue order."""
        return sorted(self._by_key.values(), key=order_of)

    def unordered(self) -> Iterator[WorkloadInfo]:
        """All pending workloads in any order: they are many, and sorting takes time."""
        return iter(list(self._by_key.values()))

    def place(self, key: WorkloadKey) -> int:
        """Position in queue order, from 1; 0 if it is not pending."""
        if self._places is None:
            self._places = Places((one.key, order_of(one)) for one in self._by_key.values())
        return self._places.of(key)

    def is_inadmissible(self, info: WorkloadInfo) -> bool:
        if info.key in self._inadmissible or info.key in self._resting:
            return True
        line = self._lines.get(info.shape)
        return line is not None and self._is_inadmissible_line(line)

    def active(self) -> Iterator[WorkloadInfo]:
        return (info for info in self.everyone() if not self.is_inadmissible(info))

    def inadmissible(self) -> Iterator[WorkloadInfo]:
        return (info for info in self.everyone() if self.is_inadmissible(info))
