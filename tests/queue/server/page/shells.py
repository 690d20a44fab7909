"""A shell over a world, for what reads one."""

from __future__ import annotations

from queuecontroller.state.shell import Shell
from tests.queue.state.world import World


class Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns


def shell_of(world: World) -> Shell:
    return Shell(world.book, world.store, Clock(world))
