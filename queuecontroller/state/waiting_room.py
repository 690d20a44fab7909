"""Stream of the statuses of all workloads whose processes wait on one node.

A changed workload is sent at once. Positions change for all workloads behind each admission: each
round renews some of them in turn, so that a thousand waiting workloads cost no more than a few.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Final

from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.status import Status, Views
from queuecontroller.state.workloads.workloads import Workloads

PLACES: Final = 100
"""Positions renewed per round; there is a round each second and one with every change."""
MOST: Final = 1000
"""Statuses per message; the rest follows in the next one."""


class WaitingRoom:
    def __init__(self, views: Views, workloads: Workloads, node: str) -> None:
        self._views = views
        self._workloads = workloads
        self._node = node
        self.event = asyncio.Event()
        """Set when there are changes to send."""
        self._changed: dict[WorkloadKey, None] = {}
        self._sent: dict[WorkloadKey, Status] = {}
        """Statuses as last sent, of workloads that are not over."""
        self._turn: deque[WorkloadKey] = deque()
        """Workloads in the order in which their positions are renewed."""

    def add(self, key: WorkloadKey) -> None:
        self._changed[key] = None
        self.event.set()

    def add_gone(self, key: WorkloadKey) -> None:
        if key in self._sent:
            self.add(key)

    def news(self, now_ns: int) -> list[Status]:
        self.event.clear()
        keys = dict.fromkeys(islice(self._changed, MOST))
        for key in keys:
            del self._changed[key]
        if self._changed:
            self.event.set()
        for _ in range(min(PLACES, len(self._turn))):
            key = self._turn.popleft()
            sent = self._sent.get(key)
            if sent is None:
                continue
            self._turn.append(key)
            # Only the position is compared; the message then has the whole status.
            if (
                sent.position
                and self._views.place(key, sent.cluster_queue, now_ns) != sent.position
            ):
                keys[key] = None
        return [one for key in keys if (one := self._new(key, now_ns)) is not None]

    def _new(self, key: WorkloadKey, now_ns: int) -> Status | None:
        record = self._workloads.records.get(key)
        mine = record is not None and record.node == self._node
        # A workload of another node is reported as deleted.
        status = self._views.status(key, now_ns) if mine else Status(key)
        before = self._sent.get(key)
        if status == before:
            return None
        if status.is_over:
            self._sent.pop(key, None)
        else:
            if before is None:
                self._turn.append(key)
            self._sent[key] = status
        return status
