"""Holders of quota of each (flavor, resource) in each ClusterQueue, in the order of preemption.

Sorted incrementally as workloads start and end, so that a search for victims reads the front of a
few lists instead of collecting and sorting a whole cohort's workloads. The order is that of
candidates of one kind: the already evicted first, the lowest priority, the most recently admitted,
by UID.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import merge
from operator import itemgetter

from queuecontroller.scheduler.model.flavor_resources import Fr
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.scheduler.quota.tree import QuotaNode

Rank = tuple[bool, int, int, str, str]
Ranked = tuple[Rank, WorkloadInfo]

# A workload without a reservation time yet counts as admitted just now, after all others.
_JUST_NOW = 1 << 62


def rank_of(info: WorkloadInfo) -> Rank:
    """Unique by its last part, so two entries never compare by their workloads."""
    reserved = _JUST_NOW if info.reserved_ns is None else info.reserved_ns
    return (not info.evicted, info.priority, -reserved, info.uid, info.key)


_by_rank = itemgetter(0)


class Holders:
    __slots__ = ("_all", "_lists", "listener")

    def __init__(self) -> None:
        self._lists: dict[QuotaNode, dict[Fr, list[Ranked]]] = {}
        self._all: dict[Hashable, Ranked] = {}
        self.listener: Callable[[WorkloadKey], None] | None = None
        """Called with each workload that is added, removed, or moved in the order."""

    def add(self, queue: QuotaNode, info: WorkloadInfo) -> None:
        lists = self._lists.setdefault(queue, {})
        entry = (rank_of(info), info)
        for fr in info.usage:
            insort(lists.setdefault(fr, []), entry, key=_by_rank)
        self._all[info.key] = entry
        if self.listener is not None:
            self.listener(info.key)

    def remove(self, queue: QuotaNode, info: WorkloadInfo) -> None:
        """Remove a workload; to be called before anything that makes the rank changes."""
        lists = self._lists.get(queue, {})
        rank = rank_of(info)
        for fr in info.usage:
            ranked = lists.get(fr, [])
            at = bisect_left(ranked, rank, key=_by_rank)
            if at < len(ranked) and ranked[at][1] is info:
                del ranked[at]
        self._forget(info)

    def drop(self, queue: QuotaNode) -> None:
        """Remove a node that is no longer in the tree."""
        for ranked in self._lists.pop(queue, {}).values():
            for _, info in ranked:
                self._forget(info)

    def _forget(self, info: WorkloadInfo) -> None:
        found = self._all.get(info.key)
        if found is not None and found[1] is info:
            del self._all[info.key]
            if self.listener is not None:
                self.listener(info.key)

    def at(self, key: Hashable) -> Ranked | None:
        return self._all.get(key)

    def evicted(self) -> list[WorkloadInfo]:
        """Holders that are evicted and have not stopped yet. All are looked at."""
        return [info for (stays, *_), info in self._all.values() if not stays]

    def lowest(self, queue: QuotaNode, frs: Iterable[Fr]) -> int | None:
        """The lowest priority of the holders of any of these in the queue; None without any."""
        lists = self._lists.get(queue, {})
        found = []
        for ranked in (lists[fr] for fr in frs if lists.get(fr)):
            split = bisect_left(ranked, True, key=lambda entry: entry[0][0])
            found += [ranked[at][0][1] for at in (0, split) if at < len(ranked)]
        return min(found, default=None)

    def of(self, queue: QuotaNode, frs: Iterable[Fr]) -> Sequence[Ranked]:
        """All holders of any of these in the queue. The result must not be changed, nor kept."""
        lists = self._lists.get(queue)
        if not lists:
            return ()
        found = [lists[fr] for fr in frs if fr in lists]
        return found[0] if len(found) == 1 else list(_merged(found))

    def one_by_one(self, queue: QuotaNode, frs: Iterable[Fr]) -> Iterator[Ranked]:
        """The holders one by one, for callers that read the first only."""
        lists = self._lists.get(queue, {})
        return _merged([lists[fr] for fr in frs if fr in lists])


def _merged(lists: Sequence[Sequence[Ranked]]) -> Iterator[Ranked]:
    """Merge without duplicates: ranks are unique."""
    last: Rank | None = None
    for entry in merge(*lists, key=_by_rank):
        if entry[0] != last:
            last = entry[0]
            yield entry
