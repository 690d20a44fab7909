"""Records events, best effort: an event that cannot be written is dropped, never waited for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from queuecontroller.cluster.cache.objects import Document
from queuecontroller.cluster.status.events import KubernetesEvent, event_of
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.resources import EVENTS, Resource

MAX_WAITING: Final = 1000
WIDTH: Final = 2
log = logging.getLogger(__name__)


class EventRecorder:
    def __init__(
        self,
        client: ApiClient,
        may_write: Callable[[], bool],
        new_name: Callable[[], str],
        records_all: bool = False,
    ) -> None:
        """`records_all`: events that only repeat conditions are recorded, too."""
        self._records_all = records_all
        self._client = client
        self._may_write = may_write
        self._new_name = new_name
        self._waiting: deque[tuple[Document, Resource, KubernetesEvent]] = deque(maxlen=MAX_WAITING)
        self._news = asyncio.Event()
        self.recorded_total = 0
        self.dropped_total = 0

    def record(self, about: Document, kind: Resource, event: KubernetesEvent) -> None:
        if event.detail and not self._records_all:
            return
        self.dropped_total += len(self._waiting) == MAX_WAITING
        self._waiting.append((about, kind, event))
        self._news.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WIDTH):
                group.create_task(self._work())

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # It may be lost in a call; see WorkQueue.
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            about, kind, recorded = self._waiting.popleft()
            if not self._may_write():
                continue
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            event = event_of(about, kind.api_version, kind.kind, recorded, now, self._new_name())
            try:
                await self._client.create(EVENTS, event, event["metadata"]["namespace"])
                self.recorded_total += 1
            except (ApiAway, ApiRefused) as error:
                self.dropped_total += 1
                log.debug("event %s dropped: %s", recorded.reason, error)
