"""Whose call is carried out next. One loop serves everybody, so time in it is what is shared.

Calls wait in a lane for each caller, lanes stand in classes: nodes, admins with the controllers of
checks, users. The class that has had the least time goes first, in it the lane that has had the
least. So whoever floods waits for itself, nodes cannot starve users nor users nodes, and an honest
call waits at most for one of each who is waiting too. Who comes back after a rest starts where the
others are: rest is not saved up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from time import perf_counter
from typing import Any, Final, TypeVar

from queuecontroller.access import Caller

from .doors import Crowded

T = TypeVar("T")

MOST_WAITING: Final = 64
"""Calls of one caller. A client that waits for its answers has a few."""
OVERHEAD_S: Final = 0.0003
"""What gRPC costs us for any call, about."""
MOST_IDLE: Final = 4096


class Class(IntEnum):
    NODES = 0
    ADMINS = 1
    USERS = 2


@dataclass(slots=True)
class _Lane:
    had_s: float = 0.0
    waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = field(default_factory=deque)


@dataclass(slots=True)
class _Lanes:
    had_s: float = 0.0
    """What the class has had."""
    floor_s: float = 0.0
    """What the lane had that was served last."""
    lanes: dict[str, _Lane] = field(default_factory=dict)
    active: dict[str, _Lane] = field(default_factory=dict)


def class_of(caller: Caller) -> Class:
    if caller.nodes and not caller.admin:
        return Class.NODES
    return Class.ADMINS if caller.admin or caller.checks else Class.USERS


class Turns:
    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._classes = [_Lanes() for _ in Class]
        self._pumping = False
        self._floor_s = 0.0
        self.crowded_total = 0
        """Calls refused because too many of the same caller were waiting."""

    async def run(self, caller: Caller, call: Callable[[], T]) -> T:
        """What `call` gives, when it is this caller's turn. Raises Crowded, and what `call`
        raises."""
        loop = asyncio.get_running_loop()
        lanes = self._classes[class_of(caller)]
        lane = lanes.lanes.get(caller.key)
        if lane is None:
            self._drop_idle(lanes)
            lane = lanes.lanes[caller.key] = _Lane(lanes.floor_s)
        if len(lane.waiting) >= MOST_WAITING:
            self.crowded_total += 1
            raise Crowded(f"{caller.shown} has {MOST_WAITING} calls waiting: let them be answered")
        if not lanes.active:
            lanes.had_s = max(lanes.had_s, self._floor_s)
        if not lane.waiting:
            lane.had_s = max(lane.had_s, lanes.floor_s)
            lanes.active[caller.key] = lane
        future: asyncio.Future[T] = loop.create_future()
        lane.waiting.append((future, call))
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)
        return await future

    def _drop_idle(self, lanes: _Lanes) -> None:
        if len(lanes.lanes) >= MOST_IDLE:
            lanes.lanes = dict(lanes.active)

    def _pump(self) -> None:
        waiting = [lanes for lanes in self._classes if lanes.active]
        if not waiting:
            self._pumping = False
            return
        lanes = min(waiting, key=lambda one: one.had_s)
        key, lane = min(lanes.active.items(), key=lambda item: item[1].had_s)
        future, call = lane.waiting.popleft()
        if not lane.waiting:
            del lanes.active[key]
        self._floor_s, lanes.floor_s = lanes.had_s, lane.had_s
        if not future.done():  # else its caller is gone
            cost_s = self._carry_out(future, call)
            lane.had_s += cost_s
            lanes.had_s += cost_s
        asyncio.get_running_loop().call_soon(self._pump)  # after what else is ready

    def _carry_out(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> float:
        began_s = self._clock()
        try:
            future.set_result(call())
        except Exception as error:  # the caller's own; it becomes a status there
            future.set_exception(error)
        return self._clock() - began_s + OVERHEAD_S
