"""Moves that would make room for pending Workloads, for their status; and a new try of those that
may be made.

A search takes milliseconds on a large cluster, so the scheduling cycle makes one only where moves
are made, and for one workload at a time. Here the leader looks at rest, at those first that it
looked at longest ago. A permission, a PodDisruptionBudget or a pod that starts may permit a move
that was not possible before and frees nothing: so where moves are made and there is a plan, the
pending Workloads are evaluated again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from queuecontroller.scheduler.explain.explanation import planned_moves
from queuecontroller.scheduler.explain.wording import moved
from queuecontroller.scheduler.model.assignment import NO_ROOM
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.scheduler.model.workload_info import WorkloadInfo
from queuecontroller.state.book import Book
from queuecontroller.state.shell import Shell

EVERY_S: Final = 5.0
"""Seconds between two looks."""
MAX_S: Final = 0.1
"""Seconds of one look; a search for one Workload is not interrupted."""
RESTS: Final = 20
"""A look is followed by a pause of so many times its length at least."""
MOST: Final = 250
"""Workloads that are looked at in turn, the first of each ClusterQueue."""


class MovePlans:
    def __init__(
        self, shell: Shell, may_write: Callable[[], bool], knows_all: Callable[[], bool]
    ) -> None:
        """`knows_all` returns True once all pods that hold GPUs are known."""
        self._shell = shell
        self._may_write = may_write
        self._knows_all = knows_all
        self._looks = 0
        self._last: dict[WorkloadKey, int] = {}
        """Number of the last look at each pending Workload."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            began_s = monotonic()
            if self._may_write() and self._knows_all():
                self._shell.step("moves", self.look)
            await asyncio.sleep(max(EVERY_S, RESTS * (monotonic() - began_s)))

    def look(self, book: Book, now_ns: int) -> None:
        book.nodes_room.follow(now_ns)
        self._looks += 1
        ends_s = monotonic() + MAX_S
        lacking = {info.key: info for info in _lacking(book)}
        found = {key: text for key, text in book.moves.items() if key in lacking}
        last = {key: self._last.get(key, 0) for key in lacking}
        for key in sorted(lacking, key=lambda one: last[one]):
            if monotonic() > ends_s:
                break
            last[key] = self._looks
            found.pop(key, None)
            if moves := planned_moves(book.engine, lacking[key]):
                found[key] = moved(moves)
        self._last = last
        changed = {key for key, _ in found.items() ^ book.moves.items()}
        book.moves = found
        for key in changed & book.workloads.records.keys():
            book.journal.touch_workload(key)
        if found and book.settings.engine.consolidation:
            book.nodes_room.stock.note_freed()


def _lacking(book: Book) -> Iterator[WorkloadInfo]:
    """Pending workloads that have quota and no room, by an evaluation of their own: of equal ones
    only the first."""
    number = 0
    for name, line in book.engine.pending.items():
        if book.engine.cache.why_inactive(name) is not None:
            continue
        for info in line.everyone():
            why = book.workloads.waiting.get(info.key)
            if why is not None and why.reason in NO_ROOM:
                number += 1
                yield info
            if number >= MOST:
                return
