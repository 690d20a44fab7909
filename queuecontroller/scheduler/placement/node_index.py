"""Nodes in order of room, so that a choice evaluates few of them.

Nodes with the same kinds of GPUs form a pool. In each pool there is one sorted list per number of
GPUs (1, 2, 4, 8) and per least free time of each (`TIMES`, and last: idle GPUs): a node's key in it
is the memory that so many of its GPUs have free each, among those with so much time free. A request
searches the list just below it and only at its end with enough memory; what it then finds on a node
is exact. A change moves one node within the lists whose figure changed. GPUs in MIG mode are in
none of them, see `Stock.with_instances`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import Final

SIZES: Final = (1, 2, 4, 8)
NONE: Final = -(1 << 62)
"""Figure below all others, for a node with fewer such GPUs."""
TIMES: Final = (NONE, 100_000, 250_000, 500_000, 750_000, 1_000_000)
"""Free time in parts per million; the first stands for any free time, even none."""
IDLE: Final = len(TIMES)

Pool = tuple[tuple[str, int], ...]
"""Model and grantable memory of each kind of GPU in the pool."""
NodeKeys = tuple[int, ...]
"""Figures of a node in each list: by size, then by time."""


def level_of(gpus: Iterable[tuple[int, int, bool]]) -> NodeKeys:
    """Keys from free memory, free time and idleness of each usable GPU."""
    rooms: list[list[int]] = [[] for _ in range(IDLE + 1)]
    for memory, time, idle in sorted(gpus, reverse=True):
        for room in rooms[: bisect_right(TIMES, time)]:
            room.append(memory)
        if idle:
            rooms[IDLE].append(memory)
    return tuple(
        [room[size - 1] if len(room) >= size else NONE for size in SIZES for room in rooms]
    )


@dataclass(slots=True)
class NodeIndex:
    _pools: dict[Pool, list[list[tuple[int, str]]]] = field(default_factory=dict)
    _members: dict[Pool, int] = field(default_factory=dict)

    def enter(self, pool: Pool, name: str, keys: NodeKeys) -> None:
        lists = self._pools.setdefault(pool, [[] for _ in keys])
        self._members[pool] = self._members.get(pool, 0) + 1
        for ranking, key in zip(lists, keys, strict=True):
            insort(ranking, (key, name))

    def leave(self, pool: Pool, name: str, keys: NodeKeys) -> None:
        for ranking, key in zip(self._pools[pool], keys, strict=True):
            del ranking[bisect_left(ranking, (key, name))]
        self._members[pool] -= 1
        if not self._members[pool]:
            del self._pools[pool], self._members[pool]

    def move(self, pool: Pool, name: str, before: NodeKeys, after: NodeKeys) -> None:
        if before == after:
            return
        for ranking, old, new in zip(self._pools[pool], before, after, strict=True):
            if old != new:
                del ranking[bisect_left(ranking, (old, name))]
                insort(ranking, (new, name))

    def candidates(
        self,
        gpus: int,
        least_bytes: Callable[[Pool], int | None],
        share_ppm: int,
        idle: bool,
        emptiest_first: bool,
    ) -> Iterator[str]:
        """Nodes that may have room, in order of room."""
        parts = []
        for pool in self._pools:
            least = least_bytes(pool)
            if least is not None:
                ranking = self._ranking(pool, gpus, share_ppm, idle)
                parts.append(_walk(ranking, bisect_left(ranking, (least, "")), emptiest_first))
        if len(parts) == 1:
            return (name for _, name in parts[0])
        return (name for _, name in merge(*parts, reverse=emptiest_first))

    def members_without(self, least_bytes: Callable[[Pool], int | None]) -> int:
        """Number of nodes none of whose GPUs is suitable, whatever is free."""
        return sum(count for pool, count in self._members.items() if least_bytes(pool) is None)

    def most_bytes(self, gpus: int, share_ppm: int, idle: bool) -> int:
        """The most memory that so many GPUs of one node have free each."""
        ends = (self._ranking(pool, gpus, share_ppm, idle)[-1][0] for pool in self._pools)
        return max(0, max(ends, default=0))

    def _ranking(self, pool: Pool, gpus: int, share_ppm: int, idle: bool) -> list[tuple[int, str]]:
        size = max(i for i, n in enumerate(SIZES) if n <= max(1, gpus))
        time = IDLE if idle else bisect_right(TIMES, share_ppm) - 1
        return self._pools[pool][size * (IDLE + 1) + time]


def _walk(
    ranking: list[tuple[int, str]], first: int, emptiest_first: bool
) -> Iterator[tuple[int, str]]:
    order = range(len(ranking) - 1, first - 1, -1) if emptiest_first else range(first, len(ranking))
    return (ranking[at] for at in order)
