"""Scenes with one who goes around us, and a daemon that may be killed in each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.nodeagent.watch.bench import CGROUP, POD, Bench, World, daemon, held, on_gpu

Play = Callable[[Bench], Awaitable[None]]


def play(act: Play, **settings: Any) -> None:
    async def run() -> None:
        it = daemon(World(), **settings)
        await it.kernel.start()
        await act(it)
        it.watch.close()

    asyncio.run(run())


async def evader(it: Bench, seconds: float = 4) -> None:
    """In a pod with a grant; throttled, refused, frozen."""
    it.world.add(7, CGROUP, POD)
    it.world.grants.update([held("g1", POD)])
    await it.looks(on_gpu(7), seconds)


def steps(it: Bench) -> list[str]:
    return sorted(one.step for one in it.watch.contained())
