"""Before the device plugin goes, the scheduler is told that nothing is free here.

A kubelet whose plugin has gone fails a pod that is bound to it then, for good; and it tells the API
server that there is nothing left only with its next status, up to 10 s later. So the daemon says it
first, goes on serving until what was already bound has been admitted, and only then ends the
kubelet's stream. New pods wait in the scheduler until the next daemon has registered and the
kubelet has told so. A daemon that is killed cannot do this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

log = logging.getLogger(__name__)

DEADLINE_S: Final = 2.0
"""Timeout of calls to the API server: a node that shuts down must not wait for an API server that
is gone. Seconds."""
SETTLES_S: Final = 1.5
"""Time from the scheduler's last binding to the kubelet's Allocate, with a margin. Seconds."""


class Withdraws(Protocol):
    async def withdraw(self, resources: Collection[str]) -> str:
        """No pod is bound here for them any more; why it could not be said, empty: it was."""


class NodeDecommission:
    """Implements Endpoint. Has to close before everything that serves the kubelet."""

    def __init__(
        self,
        node: Withdraws,
        resources: Callable[[], Collection[str]],
        settles_s: float = SETTLES_S,
    ) -> None:
        self._node = node
        self._resources = resources
        self._settles_s = settles_s

    async def start(self) -> None: ...

    async def close(self) -> None:
        names = sorted(self._resources())
        if not names:
            return
        try:
            async with asyncio.timeout(DEADLINE_S):
                trouble = await self._node.withdraw(names)
        except TimeoutError:
            trouble = "no answer in time"
        if trouble:
            log.warning("kubernetes: pods that are bound to this node now may fail: %s", trouble)
            return
        log.info("kubernetes: no pod is bound to this node any more for %s", ", ".join(names))
        await asyncio.sleep(self._settles_s)
