"""Writes the node annotations that HAMi's tools read: the register of GPUs as their agents report
them, and the scheduler's half of other vendors' handshakes.

The leader writes them, so no node needs permission to change Nodes. A node is compared every LOOK_S
and written only if it differs: what another writer puts there is overwritten, and is never read
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.writers.workqueue import WorkQueue
from queuecontroller.gpushares.admission.hami_annotations import differences
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import NODES

LOOK_S: Final = 30.0
"""Seconds between two comparisons, as in HAMi: half of its timeout for a handshake."""
TICK_S: Final = 1.0
WIDTH: Final = 4


class NodeFacts:
    def __init__(
        self,
        shell: Shell,
        client: ApiClient,
        sharing: SharePods,
        may_write: Callable[[], bool],
        look_s: float = LOOK_S,
    ) -> None:
        self._shell = shell
        self._client = client
        self._sharing = sharing
        self._may_write = may_write
        self._look_s = look_s
        self._looked: dict[str, float] = {}
        self._ready: dict[str, bool] = {}
        self._work_queue: WorkQueue[str] = WorkQueue("register of node", self._write, WIDTH)
        self.written_total = 0

    async def run(self) -> None:
        """Write annotations until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work_queue.run())
            while True:
                self.look(monotonic())
                await asyncio.sleep(TICK_S)

    def look(self, now_s: float) -> None:
        """Queue the nodes whose annotations differ, each when it connects and then every
        `look_s`."""
        nodes, now_ns = self._shell.book.nodes, self._shell.now_ns()
        ready = {one.name for one in nodes.each_ready(now_ns)}
        names = nodes.nodes.keys() | self._sharing.foreign.asked_nodes()
        for name in self._looked.keys() - names:
            del self._looked[name]
        for name in names:
            came = name in ready and not self._ready.get(name)
            if came or now_s - self._looked.get(name, float("-inf")) >= self._look_s:
                self._looked[name] = now_s
                if self._patch(name):
                    self._work_queue.add(name)
        self._ready = dict.fromkeys(ready, True)

    def _patch(self, name: str) -> dict[str, str | None]:
        noted = self._sharing.noted(name)
        if noted is None:  # The API server has no such node.
            return {}
        now_ns = self._shell.now_ns()
        changed: dict[str, str | None] = {**self._sharing.foreign.handshakes(name, now_ns)}
        nodes = self._shell.book.nodes
        node = nodes.nodes.get(name)
        if node is not None and node.connected:
            gpus = node.capacity.gpus if nodes.ready(node, now_ns) else None
            changed |= differences(gpus, noted, now_ns)
        return changed

    async def _write(self, name: str) -> None:
        changed = self._patch(name)
        if not changed or not self._may_write():
            return
        patch: dict[str, Any] = {"metadata": {"annotations": changed}}
        try:
            await self._client.merge_patch(NODES, name, patch)
            self.written_total += 1
        except ApiRefused as refused:
            if not refused.not_found:
                raise
