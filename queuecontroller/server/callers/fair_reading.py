"""Fair queueing of reads between callers that send many calls at once.

A call that has been read waits in gRPC's single queue, before its caller is known, so a burst of
one caller delays all others. Callers seen with a burst are therefore read in turns while other
callers are active: in a turn, some connections of one caller are read, about as many as bring
CALLS_OF_A_TURN calls by their last counts; the next turn begins when the first of these calls
begins. All other callers are read as usual, and their calls wait behind at most two turns.

A burst is detected from many calls of one caller waiting to be carried out, or from gRPC's queue:
a call began long after its connection was last read, and one caller began MANY calls in that time.

The scheme is work-conserving: the queue holds at least one turn, and turns go only to callers that
have sent data, first to the one with the fewest recent calls.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

LONG_LINE_S: Final = 0.03
"""Delay from which gRPC's queue counts as long; without a queue a call begins within a few
milliseconds."""
LOOK_EVERY_S: Final = 0.01
FADING_S: Final = 1.0
"""Time constant after which a call counts for 1/e."""
MANY: Final = 4
"""Calls of one caller in the queue that are a burst. A caller that waits for its answers has
one."""
ACTIVE: Final = 0.5
"""Decayed number of calls from which a caller counts as active."""
CALLS_OF_A_TURN: Final = 16
"""Calls read in one turn. Connections that bring one call each are read together, since calls that
arrive together are decided and written together, which takes a third less time. A connection that
brings as many by itself is read alone."""
MIN_IN_A_TURN: Final = 3
"""Calls on one connection in one turn that keep its caller in turns."""
REMEMBERED_S: Final = 10.0
"""How long a caller stays in turns after its last turn with MIN_IN_A_TURN calls."""
COST_OF_A_TURN: Final = 2.0
"""Cost of a turn of one connection, in calls, since it may bring none."""
LONGEST_TURN_S: Final = 0.05
EMPTY_LINE_S: Final = 0.008
"""If no call begins for this time, the queue counts as empty: the data read was not a complete
call."""
HELD_S: Final = 0.005
"""Interval at which connections with data that are paused for another reason are checked again."""
_WHY: Final = "turn"


class Reads(Protocol):
    """A connection whose reading can be paused."""

    @property
    def stopped_for(self) -> set[str]: ...

    def stop(self, why: str) -> None: ...

    def go_on(self, why: str) -> None: ...

    def fileno(self) -> int:
        """The file descriptor; -1 if the connection is closed."""


@dataclass(slots=True)
class _Place:
    """State of a connection among those of its caller."""

    turn: int = 0
    """Number of its last turn."""
    begun: int | None = None
    """Calls since its last turn; None: it has had none since its caller began to be read in turns.
    """


@dataclass(eq=False, slots=True)
class _Sender:
    """One caller."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
    """Times at which its last calls began."""
    calls: float = 0.0
    """Exponentially decaying number of calls and cost of turns."""
    at_s: float = 0.0
    turns_until_s: float | None = None
    """End of the time in which it is read in turns; None if it is read normally."""
    connections: dict[Reads, _Place] = field(default_factory=dict)

    def calls_at(self, now_s: float) -> float:
        return self.calls * math.exp((self.at_s - now_s) / FADING_S)

    def add(self, calls: float, now_s: float) -> None:
        self.calls = self.calls_at(now_s) + calls
        self.at_s = now_s


@dataclass(frozen=True, slots=True)
class _Turn:
    sender: _Sender
    connections: frozenset[Reads]
    since_s: float


class FairReading:
    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}
        self._in_turns: dict[_Sender, None] = {}
        self._waiting = select.epoll()
        self._by_fd: dict[int, tuple[_Sender, Reads]] = {}
        self._fds: dict[Reads, int] = {}
        self._turn: _Turn | None = None
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listening = False
        self._looked_s = 0.0
        self._began_s = 0.0
        """Time at which a call of any caller last began."""
        self.marked_total = 0
        """Number of times that a caller began to be read in turns."""

    def close(self) -> None:
        self._forget_timer()
        self._listen(False)
        self._waiting.close()

    # -- events -----------------------------------------------------------------------------------

    def joined(self, key: str, connection: Reads) -> None:
        """Add a connection of a caller."""
        sender = self._senders.setdefault(key, _Sender())
        sender.connections[connection] = _Place()
        if sender in self._in_turns:
            self._keep_waiting(sender, connection)
            self._next()

    def left(self, key: str, connection: Reads) -> None:
        """Remove a connection that is being closed; its file descriptor must still be open."""
        sender = self._senders[key]
        del sender.connections[connection]
        self._let_read(connection)
        if not sender.connections:
            del self._senders[key]
            self._in_turns.pop(sender, None)
        if self._turn is not None and connection in self._turn.connections:
            self._end_turn()

    def began(self, key: str, connection: Reads, now_s: float) -> None:
        """Record that a call of the caller begins."""
        sender = self._senders[key]
        sender.add(1.0, now_s)
        sender.latest.append(now_s)
        place = sender.connections.get(connection)
        if place is not None and place.begun is not None:
            place.begun += 1
        self._began_s = now_s
        if self._turn is not None and connection in self._turn.connections:
            self._end_turn()

    def saw_many(self, key: str, now_s: float) -> None:
        """Record that many calls of the caller wait to be carried out."""
        sender = self._senders.get(key)
        if sender is not None and sender not in self._in_turns and len(self._active(now_s)) > 1:
            self._mark(sender, now_s)
            self._next()

    def waited(self, line_s: float, now_s: float) -> None:
        """Record how long a call waited in gRPC's queue."""
        if line_s < LONG_LINE_S or now_s < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = now_s
        active = self._active(now_s)
        for sender in active if len(active) > 1 else ():
            many = len(sender.latest) == MANY and sender.latest[0] > now_s - line_s
            if many and sender not in self._in_turns:
                self._mark(sender, now_s)
        self._next()

    def _active(self, now_s: float) -> list[_Sender]:
        return [one for one in self._senders.values() if one.calls_at(now_s) >= ACTIVE]

    # -- turns ------------------------------------------------------------------------------------

    def _mark(self, sender: _Sender, now_s: float) -> None:
        self.marked_total += 1
        sender.turns_until_s = now_s + REMEMBERED_S
        self._in_turns[sender] = None
        for connection, place in sender.connections.items():
            place.begun = None
            self._keep_waiting(sender, connection)

    def _release(self, sender: _Sender) -> None:
        sender.turns_until_s = None
        del self._in_turns[sender]
        for connection in sender.connections:
            self._let_read(connection)

    def _next(self) -> None:
        """Start a turn of the caller with the fewest recent calls among those that sent data."""
        if self._turn is not None:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for sender in [one for one in self._in_turns if (one.turns_until_s or 0.0) < now_s]:
            self._release(sender)
        self._forget_timer()
        ready = [self._by_fd[fd] for fd, _ in self._waiting.poll(0)] if self._by_fd else []
        self._listen(bool(self._by_fd) and not ready)
        free = [one for one in ready if one[1].stopped_for <= {_WHY}]
        if free:
            sender = min((one for one, _ in free), key=lambda one: one.calls_at(now_s))
            self._give_turn(sender, [which for one, which in free if one is sender], now_s)
        elif ready:
            self._timer = loop.call_later(HELD_S, self._next)

    def _give_turn(self, sender: _Sender, free: list[Reads], now_s: float) -> None:
        """Start a turn with the connections whose last turn is longest ago, at least one."""
        self._turns += 1
        turn, calls = list[Reads](), 0
        for connection in sorted(free, key=lambda one: sender.connections[one].turn):
            place = sender.connections[connection]
            calls += CALLS_OF_A_TURN if place.begun is None else max(1, place.begun)
            if turn and calls > CALLS_OF_A_TURN:
                break
            if (place.begun or 0) >= MIN_IN_A_TURN:
                sender.turns_until_s = now_s + REMEMBERED_S
            place.turn, place.begun = self._turns, 0
            sender.add(COST_OF_A_TURN, now_s)
            turn.append(connection)
        self._turn = _Turn(sender, frozenset(turn), now_s)
        for connection in turn:
            self._let_read(connection)
        self._timer = asyncio.get_running_loop().call_later(EMPTY_LINE_S, self._look_at_turn)

    def _look_at_turn(self) -> None:
        if self._turn is None:
            return
        loop = asyncio.get_running_loop()
        now_s, since_s = loop.time(), self._turn.since_s
        nothing = now_s >= max(self._began_s, since_s) + EMPTY_LINE_S
        if nothing or now_s >= since_s + LONGEST_TURN_S:
            self._end_turn()
        else:
            self._timer = loop.call_later(EMPTY_LINE_S / 2, self._look_at_turn)

    def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        for connection in turn.connections if turn.sender in self._in_turns else ():
            if connection in turn.sender.connections:
                self._keep_waiting(turn.sender, connection)
        self._next()

    def _keep_waiting(self, sender: _Sender, connection: Reads) -> None:
        fd = connection.fileno()
        if fd < 0 or connection in self._fds:
            return
        connection.stop(_WHY)
        self._waiting.register(fd, select.EPOLLIN)
        self._by_fd[fd] = sender, connection
        self._fds[connection] = fd

    def _let_read(self, connection: Reads) -> None:
        fd = self._fds.pop(connection, None)
        if fd is not None:
            del self._by_fd[fd]
            self._waiting.unregister(fd)
            connection.go_on(_WHY)

    def _listen(self, wanted: bool) -> None:
        """Start or stop waiting for the first paused connection that sends data."""
        if wanted is self._listening:
            return
        self._listening = wanted
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_reader(self._waiting.fileno(), self._next)
        else:
            loop.remove_reader(self._waiting.fileno())

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
