"""Who holds quota of each (flavor, resource) in each ClusterQueue, in the order they would go.

Kept sorted as workloads come and go, so that a search for preemption targets reads the front of a
few lists instead of collecting and sorting a whole cohort's workloads. The order is that of
candidates of one kind: the already evicted first, the lowest priority, the most recently admitted,
by UID.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import merge
from operator import itemgetter

from .model import WorkloadKey
from .quota_tree import Fr, QuotaNode
from .workload_info import WorkloadInfo

Rank = tuple[bool, int, int, str, str]
Ranked = tuple[Rank, WorkloadInfo]

# Who has no reservation time yet counts as admitted just now, after all others.
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
        """Told of everyone who comes, goes, or moves in the order."""

    def add(self, queue: QuotaNode, info: WorkloadInfo) -> None:
        lists = self._lists.setdefault(queue, {})
        entry = (rank_of(info), info)
        for fr in info.usage:
            insort(lists.setdefault(fr, []), entry, key=_by_rank)
        self._all[info.key] = entry
        if self.listener is not None:
            self.listener(info.key)

    def remove(self, queue: QuotaNode, info: WorkloadInfo) -> None:
        """To be called before anything that makes the rank changes."""
        lists = self._lists.get(queue, {})
        rank = rank_of(info)
        for fr in info.usage:
            ranked = lists.get(fr, [])
            at = bisect_left(ranked, rank, key=_by_rank)
            if at < len(ranked) and ranked[at][1] is info:
                del ranked[at]
        self._forget(info)

    def drop(self, queue: QuotaNode) -> None:
        """The node is gone from the tree."""
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

    def up_to(self, queue: QuotaNode, frs: Iterable[Fr], priority: int) -> list[WorkloadInfo]:
        """Those of them whose priority is no higher."""
        ranked = self.of(queue, frs)
        split = bisect_left(ranked, True, key=lambda entry: entry[0][0])
        found = []
        for begin, end in ((0, split), (split, len(ranked))):
            last = bisect_right(ranked, priority, begin, end, key=lambda entry: entry[0][1])
            found += [info for _, info in ranked[begin:last]]
        return found

    def of(self, queue: QuotaNode, frs: Iterable[Fr]) -> Sequence[Ranked]:
        """Everyone in the queue who holds any of these. Not to be changed, nor kept."""
        lists = self._lists.get(queue)
        if not lists:
            return ()
        found = [lists[fr] for fr in frs if fr in lists]
        if len(found) == 1:
            return found[0]
        once: dict[str, Ranked] = {}
        for entry in merge(*found, key=_by_rank):
            once.setdefault(entry[1].key, entry)
        return list(once.values())
