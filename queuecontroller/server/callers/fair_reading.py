"""Who is read next of those who send many calls at once.

A call that has been read stands in gRPC's one line behind all others, before we know whose it is;
so what one caller sends at once, everybody waits for. So whoever was seen with many sends in turns
from then on, where others call, too: some connections of one caller are read, as many as bring a
few calls by what each brought last, and the next ones when the first call of those begins. All
others are read as always, and who waits for its answers stands behind two such turns at most.

Many are seen where they wait to be carried out, or by the line: a call began so long after its
connection was last read, and as many of one caller stand there as begin in that time.

Nobody rests for this while there is nothing to do: the line holds one turn at least, and a turn
goes to one who has sent something, the one first who had the least of late.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Protocol

LONG_LINE_S: Final = 0.03
"""A call begins within a few milliseconds where there is no line."""
LOOK_EVERY_S: Final = 0.01
FADING_S: Final = 1.0
"""After so long, a call counts for 1/e."""
MANY: Final = 4
"""Calls of one caller in the line. Who waits for each answer has one there, however fast it is."""
ACTIVE: Final = 0.5
"""Fading calls of one who called of late."""
CALLS_OF_A_TURN: Final = 16
"""Connections that bring one each are read together: what comes together is decided and written
together, which takes a third less than one by one. A connection that brings so many is read alone.
"""
FEWEST_IN_A_TURN: Final = 3
"""Who sends so many by one connection in one turn goes on in turns,"""
REMEMBERED_S: Final = 10.0
"""and for so long after the last such turn."""
COST_OF_A_TURN: Final = 2.0
"""Of a connection, in calls: it may bring none."""
LONGEST_TURN_S: Final = 0.05
EMPTY_LINE_S: Final = 0.008
"""Nothing is in the line if nothing began for so long: then what was sent is no call, or not all of
one."""
HELD_S: Final = 0.005
"""Until those are looked at again who have sent something and are held for another reason."""
_WHY: Final = "turn"


class Reads(Protocol):
    """A connection, as far as it is read or not."""

    @property
    def stopped_for(self) -> set[str]: ...

    def stop(self, why: str) -> None: ...

    def go_on(self, why: str) -> None: ...

    def fileno(self) -> int:
        """-1 for a closed one."""


@dataclass(slots=True)
class _Place:
    """Of a connection, among those of its caller."""

    turn: int = 0
    """Its last."""
    begun: int | None = None
    """Calls since then; None: it has had none since its caller sends in turns."""


@dataclass(eq=False, slots=True)
class _Sender:
    """One caller."""

    latest: deque[float] = field(default_factory=lambda: deque(maxlen=MANY))
    """When its last calls began."""
    calls: float = 0.0
    """That began, and turns; each fades."""
    at_s: float = 0.0
    turns_until_s: float | None = None
    """None: it is read as always."""
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
        """When a call began last, anybody's."""
        self.marked_total = 0
        """How often somebody came to send in turns."""

    def close(self) -> None:
        self._forget_timer()
        self._listen(False)
        self._waiting.close()

    # -- what happens -----------------------------------------------------------------------------

    def joined(self, key: str, connection: Reads) -> None:
        """The connection is this caller's."""
        sender = self._senders.setdefault(key, _Sender())
        sender.connections[connection] = _Place()
        if sender in self._in_turns:
            self._keep_waiting(sender, connection)
            self._next()

    def left(self, key: str, connection: Reads) -> None:
        """It is closed; its descriptor is not yet."""
        sender = self._senders[key]
        del sender.connections[connection]
        self._let_read(connection)
        if not sender.connections:
            del self._senders[key]
            self._in_turns.pop(sender, None)
        if self._turn is not None and connection in self._turn.connections:
            self._end_turn()

    def began(self, key: str, connection: Reads, now_s: float) -> None:
        """A call of theirs begins."""
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
        """Many calls of theirs wait to be carried out."""
        sender = self._senders.get(key)
        if sender is not None and sender not in self._in_turns and len(self._active(now_s)) > 1:
            self._mark(sender, now_s)
            self._next()

    def waited(self, line_s: float, now_s: float) -> None:
        """Some call stood in the line for so long."""
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
        """Gives the turn to who had the least of late, of those who have sent something."""
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
        """To the connections whose last turn is longest ago; to one at least."""
        self._turns += 1
        turn, calls = list[Reads](), 0
        for connection in sorted(free, key=lambda one: sender.connections[one].turn):
            place = sender.connections[connection]
            calls += CALLS_OF_A_TURN if place.begun is None else max(1, place.begun)
            if turn and calls > CALLS_OF_A_TURN:
                break
            if (place.begun or 0) >= FEWEST_IN_A_TURN:
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
        """Hears of the first of them that sends something."""
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
