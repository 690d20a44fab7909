"""Sets the node's allocatable GPUs to zero before the device plugin stops.

A kubelet without the plugin rejects a pod that is then bound to the node, and the pod fails for
good; but the kubelet reports the missing devices only in its next node status, up to 10 s later. So
the daemon writes the zero itself, serves until pods that are already bound have been admitted, and
only then ends the kubelet's stream. The zero itself can get a pod rejected: with 0 allocatable the
kubelet takes the devices in use as the limit, which falls when another pod ends. So the daemon
first tells the queue controller that it stops, and the controller binds no more pods here. The zero
is written when the kubelet has admitted those that were bound before.

New pods stay pending until the next daemon has registered and the kubelet has reported its devices.
A daemon that is killed cannot do this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from nodeagent.core.kubelet.pod_documents import PodFacts
from sluicecommon.logs import error_text

log = logging.getLogger(__name__)

DEADLINE_S: Final = 2.0
"""Timeout of calls to the API server: a node that shuts down must not wait for an API server that
is gone. Seconds."""
SETTLES_S: Final = 1.5
"""Time from the scheduler's last binding to the kubelet's Allocate, with a margin. Seconds."""
ADMITTED_S: Final = 18.0
"""Longest time that pods which are bound already are waited for after that: a busy kubelet admits
them later, and the chart ends the daemon after 30 s. Seconds."""
ANNOUNCED_S: Final = 6.0
"""Longest time of that before the zero is written. Seconds."""
POLL_S: Final = 0.25


class Withdraws(Protocol):
    async def withdraw(self, resources: Collection[str]) -> str:
        """Set the resources to zero; return the error, or an empty string if they were set."""

    async def withdraw_last(self, resources: Collection[str]) -> str:
        """Do so after the watches have ended."""

    def offers(self, resources: Collection[str]) -> bool:
        """Return True if the scheduler may still give any of these away."""

    def pods_here(self) -> Collection[PodFacts]:
        """Return the pods that are bound to the node."""


class Announces(Protocol):
    announces_stop: bool
    """True if it is to tell the queue controller that the daemon stops."""
    stop_announced: bool
    """True if the queue controller has been told that the daemon stops."""


async def _in_time(call: Coroutine[Any, Any, str]) -> str:
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await call
    except TimeoutError as error:
        return error_text(error)


class LastWithdrawal:
    """An Endpoint that must close after all those that serve the kubelet: its last status may have
    had the devices, and its next one comes only seconds later."""

    def __init__(self, decommission: NodeDecommission) -> None:
        self._decommission = decommission

    async def start(self) -> None: ...

    async def close(self) -> None:
        await self._decommission.withdraw_last()


class NodeDecommission:
    """An Endpoint that must close before all those that serve the kubelet."""

    def __init__(
        self,
        node: Withdraws,
        resources: Callable[[], Collection[str]],
        before: Callable[[], None] = lambda: None,
        queue: Announces | None = None,
        *,
        settles_s: float = SETTLES_S,
    ) -> None:
        """`before` is called before the resources are set to zero. `queue` must be closed first."""
        self._node = node
        self._resources = resources
        self._settles_s = settles_s
        self._before = before
        self._queue = queue
        self._withdrawn: list[str] = []
        self.last = LastWithdrawal(self)

    async def start(self) -> None:
        if self._queue is not None:
            self._queue.announces_stop = True

    async def close(self) -> None:
        names = sorted(self._resources())
        if not names:
            return
        self._before()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settles_s + ADMITTED_S
        if self._queue is not None and self._queue.stop_announced:
            await self._settled(names, min(end_s, loop.time() + ANNOUNCED_S))
        # A busy API server may answer the second time.
        if (trouble := await self._withdraw(names)) and (trouble := await self._withdraw(names)):
            log.warning("kubernetes: pods that are bound to this node now may fail: %s", trouble)
            return
        self._withdrawn = names
        log.info("kubernetes: no pod is bound to this node any more for %s", ", ".join(names))
        if late := await self._settled(names, end_s):
            log.warning("kubernetes: pods that the kubelet may reject now: %s", ", ".join(late))

    async def _settled(self, names: Collection[str], end_s: float) -> list[str]:
        """Wait until all pods that are bound to the node are admitted, and no other has come for
        some time; return those that are not admitted at the end."""
        loop = asyncio.get_running_loop()
        quiet_since_s = loop.time()
        while True:
            late = self._not_admitted(names)
            if late or (self._withdrawn and self._node.offers(names)):
                if self._withdrawn:
                    # The kubelet's status has the devices again, since they are still served: a pod
                    # may have been bound since.
                    await self._withdraw(names)
                quiet_since_s = loop.time()
            elif loop.time() >= quiet_since_s + self._settles_s:
                return []
            if loop.time() >= end_s:
                return late
            await asyncio.sleep(POLL_S)

    async def _withdraw(self, names: Collection[str]) -> str:
        return await _in_time(self._node.withdraw(names))

    async def withdraw_last(self) -> None:
        if self._withdrawn:
            await _in_time(self._node.withdraw_last(self._withdrawn))

    def _not_admitted(self, names: Collection[str]) -> list[str]:
        """Return the pods that are bound to the node and have not been allocated their devices."""
        return [
            f"{pod.namespace}/{pod.name}"
            for pod in self._node.pods_here()
            if not pod.is_admitted and not pod.is_over
            if any(name in names for _, amounts in pod.containers for name, _ in amounts)
        ]
