"""Fair queueing of calls: one event loop serves all callers, so its time is shared fairly.

Each caller has a queue of calls (a lane), and lanes belong to classes: nodes, admins with the
controllers of checks, users. The class that has used the least time is served first, and in it the
lane that has used the least. A caller that floods therefore delays only itself, nodes and users
cannot starve each other, and a call waits at most for one call of each other active caller. A
caller that becomes active again starts at the current level: idle time earns no credit.

A long call is a generator: it stops at every `yield`, and after SLICE_S it waits for the next turn
of its lane. State that it reads may have changed by then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from enum import IntEnum
from time import thread_time
from typing import Any, Final, TypeVar

from queuecontroller.server.callers.listeners import Crowded
from queuecontroller.state.access import Caller

T = TypeVar("T")

MAX_WAITING: Final = 64
"""Limit of one caller's waiting calls. A client that waits for its answers has a few."""
TURNS_S: Final = 0.004
"""Time for calls per pass of the event loop; calls that arrive together are decided and written
together."""
SLICE_S: Final = 0.001
"""Time slice of a long call in one turn: a call may wait for one slice of each of 33 others."""
QUIET_PASSES: Final = 3
"""Passes of the event loop without a new call before calls are carried out. gRPC hands over one
call in about three passes; if calls were carried out in each pass, they would arrive more slowly
than they are carried out and wait in gRPC's own queue, which is not fair."""
MAX_PASSES: Final = 64
OVERHEAD_S: Final = 0.0003
"""Approximate cost of any call inside gRPC."""
MAX_IDLE: Final = 4096


class Class(IntEnum):
    NODES = 0
    ADMINS = 1
    USERS = 2


@dataclass(frozen=True, slots=True)
class _Sliced:
    """The remainder of a call that takes more than one turn."""

    steps: Generator[None, None, Any]

    def __call__(self) -> Generator[None, None, Any]:
        return self.steps


@dataclass(slots=True)
class _Lane:
    caller: Caller
    used_s: float = 0.0
    busy: bool = False
    waiting: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = field(default_factory=deque)


@dataclass(slots=True)
class _Lanes:
    used_s: float = 0.0
    """Time that the class has used."""
    floor_s: float = 0.0
    """Time used by the lane that was served last; new lanes start here."""
    lanes: dict[str, _Lane] = field(default_factory=dict)
    active: dict[str, _Lane] = field(default_factory=dict)


ENOUGH_WAITING: Final = {Class.NODES: 16, Class.ADMINS: 16, Class.USERS: 4}
"""Waiting calls of one caller from which its connections are not read. Calls that have been read
wait in gRPC's own queue, which is first in, first out for all callers and so must stay short."""


def class_of(caller: Caller) -> Class:
    if caller.nodes and not caller.admin:
        return Class.NODES
    return Class.ADMINS if caller.admin or caller.checks else Class.USERS


class FairCalls:
    def __init__(
        self,
        clock: Callable[[], float] = thread_time,
        busy: Callable[[Caller, bool], None] = lambda _caller, _enough: None,
    ) -> None:
        """`busy` is called when a caller reaches ENOUGH_WAITING calls, and when it drops below."""
        self._clock = clock
        self._busy = busy
        self._classes = [_Lanes() for _ in Class]
        self._pumping = False
        self._arrived = False
        self._quiet = 0
        """Passes of the loop since a call arrived."""
        self._passed = 0
        """Passes since the last turn."""
        self._floor_s = 0.0
        self.crowded_total = 0
        """Calls refused because too many of the same caller were waiting."""

    async def run(self, caller: Caller, call: Callable[[], T | Generator[None, None, T]]) -> T:
        """Carry out `call` in this caller's turn and return its result. Raises Crowded, and the
        errors of `call`."""
        loop = asyncio.get_running_loop()
        lanes = self._classes[class_of(caller)]
        lane = lanes.lanes.get(caller.key)
        if lane is None:
            self._drop_idle(lanes)
            lane = lanes.lanes[caller.key] = _Lane(caller, lanes.floor_s)
        if len(lane.waiting) >= MAX_WAITING:
            self.crowded_total += 1
            raise Crowded(
                f"{caller.shown}: too many waiting calls (limit {MAX_WAITING}): wait for answers"
            )
        if not lanes.active:
            lanes.used_s = max(lanes.used_s, self._floor_s)
        if not lane.waiting:
            lane.used_s = max(lane.used_s, lanes.floor_s)
            lanes.active[caller.key] = lane
        future: asyncio.Future[T] = loop.create_future()
        lane.waiting.append((future, call))
        self._arrived = True
        if len(lane.waiting) >= ENOUGH_WAITING[class_of(caller)]:
            lane.busy = True
            self._busy(caller, True)
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)
        return await future

    def _drop_idle(self, lanes: _Lanes) -> None:
        if len(lanes.lanes) >= MAX_IDLE:
            lanes.lanes = dict(lanes.active)

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        self._quiet = 0 if self._arrived else self._quiet + 1
        self._arrived = False
        if self._quiet < QUIET_PASSES and self._passed < MAX_PASSES:
            self._passed += 1
            loop.call_soon(self._pump)
            return
        self._quiet = self._passed = 0
        left_s = TURNS_S
        while left_s > 0:
            cost_s = self._next()
            if cost_s is None:
                self._pumping = False
                return
            left_s -= cost_s
        loop.call_soon(self._pump)  # Other ready callbacks run first.

    def _next(self) -> float | None:
        """Carry out one call, or a slice of one; its cost in s, or None if none waits."""
        waiting = [lanes for lanes in self._classes if lanes.active]
        if not waiting:
            return None
        lanes = min(waiting, key=lambda one: one.used_s)
        key, lane = min(lanes.active.items(), key=lambda item: item[1].used_s)
        future, call = lane.waiting.popleft()
        if not lane.waiting:
            del lanes.active[key]
        self._floor_s, lanes.floor_s = lanes.used_s, lane.used_s
        cost_s, left = self._carry_out(future, call)
        if left is not None:
            lane.waiting.appendleft((future, left))
            lanes.active[key] = lane
        if lane.busy and len(lane.waiting) < ENOUGH_WAITING[class_of(lane.caller)] // 2:
            lane.busy = False
            self._busy(lane.caller, False)
        lane.used_s += cost_s
        lanes.used_s += cost_s
        return cost_s

    def _carry_out(
        self, future: asyncio.Future[Any], call: Callable[[], Any]
    ) -> tuple[float, Callable[[], Any] | None]:
        """Run a call for one slice; returns its cost in seconds, and its remainder if any."""
        if future.done():  # The caller has disconnected.
            if isinstance(call, _Sliced):
                call.steps.close()
            return 0.0, None
        began_s = self._clock()
        overhead_s = 0.0 if isinstance(call, _Sliced) else OVERHEAD_S
        left = None
        try:
            found = call()
            if isinstance(found, Generator):
                left = _Sliced(found)
                next(found)
                while self._clock() < began_s + SLICE_S:
                    next(found)
            else:
                future.set_result(found)
        except StopIteration as end:
            left = None
            future.set_result(end.value)
        except Exception as error:  # It becomes a gRPC status in `Calls`.
            left = None
            future.set_exception(error)
        return self._clock() - began_s + overhead_s, left
