"""A shell over a world, for what reads one."""

from __future__ import annotations

from typing import Any

from queuecontroller.server.page.picture import Picture
from queuecontroller.state.shell import Shell
from sluicecommon.page.board import Sight
from tests.queue.state.world import World

ALL = Sight(
    frozenset(
        {
            "Overview",
            "ClusterQueue",
            "Cohort",
            "ResourceFlavor",
            "Topology",
            "Node",
            "Gpu",
            "Event",
            "Detection",
        }
    ),
    None,
)


class Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns


def shell_of(world: World) -> Shell:
    return Shell(world.book, world.store, Clock(world))


def picture_of(shell: Shell) -> Picture:
    return Picture(shell, "i", lambda: {"version": "1"})


def drawn(picture: Picture, now_s: float) -> dict[Any, dict[str, Any]]:
    while picture.round(now_s):
        pass
    return {one.key: dict(one.fields or {}) for one in picture.board.everything(ALL)}
