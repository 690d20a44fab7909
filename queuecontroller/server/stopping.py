"""The end of a replica in a cluster: its callers go to others first, then its registrations and its
lease are given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from queuecontroller.state.shell import EXIT_DEFECT, EXIT_OK

log = logging.getLogger(__name__)


class Runs(Protocol):
    async def run(self) -> None:
        """Work until cancelled; an exception is a defect."""


class Drains(Protocol):
    def drain(self) -> None:
        """Close each connection after its next answer."""


async def run_until(controller: Runs, stopped: asyncio.Event) -> int:
    """Run until stopped; returns the exit status."""
    running = asyncio.create_task(controller.run())
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if running.done():
        log.critical("defect", exc_info=running.exception())
        return EXIT_DEFECT
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return EXIT_OK


async def drain(
    posts: Sequence[Drains],
    stopped: asyncio.Event,
    drain_s: float,
    drained: asyncio.Event,
) -> None:
    """Once stopped, have the callers of the webhooks go to other replicas for `drain_s`, then set
    `drained`."""
    await stopped.wait()
    if posts and drain_s:
        log.info("stopping in %g s: callers of the webhooks go to other replicas", drain_s)
        for one in posts:
            one.drain()
        await asyncio.sleep(drain_s)
    drained.set()


async def cancel_at(stopped: asyncio.Event, registering: asyncio.Task[None]) -> None:
    """End the registrations before the lease is given back: the next leader makes its own."""
    await stopped.wait()
    registering.cancel()
