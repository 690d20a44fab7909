"""Fair reading: a client that sends many calls at once takes turns; a client that waits for its
answers does not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from queuecontroller.server.callers import fair_reading
from queuecontroller.server.callers.fair_reading import (
    CALLS_OF_A_TURN,
    MANY,
    REMEMBERED_S,
    FairReading,
)


@dataclass(eq=False)
class Connection:
    """One end of a socket pair; what is said at the other end can be read here."""

    stopped_for: set[str] = field(default_factory=set)
    ends: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def stop(self, why: str) -> None:
        self.stopped_for.add(why)

    def go_on(self, why: str) -> None:
        self.stopped_for.discard(why)

    def fileno(self) -> int:
        return self.ends[0].fileno()

    @property
    def is_read(self) -> bool:
        return not self.stopped_for

    def say(self) -> None:
        self.ends[1].send(b"call")

    def take(self) -> None:
        self.ends[0].recv(4096)

    def close(self) -> None:
        for end in self.ends:
            end.close()


class Line:
    """Reading turns with callers of one connection each, unless set otherwise."""

    def __init__(self, *callers: str) -> None:
        self.turns = FairReading()
        self.now_s = asyncio.get_running_loop().time()
        self.of: dict[str, Connection] = {}
        for caller in callers:
            self.join(caller)

    def join(self, caller: str, name: str = "") -> Connection:
        made = self.of[name or caller] = Connection()
        self.turns.joined(caller, made)
        return made

    def begin(self, caller: str, times: int = 1, name: str = "") -> None:
        for _ in range(times):
            self.turns.began(caller, self.of[name or caller], asyncio.get_running_loop().time())

    def flood(self, *callers: str) -> None:
        for caller in callers:
            self.begin(caller, MANY)
        self.turns.waited(1.0, asyncio.get_running_loop().time())

    def read(self) -> set[str]:
        return {name for name, one in self.of.items() if one.is_read}

    def close(self) -> None:
        self.turns.close()
        for one in self.of.values():
            one.close()


def play(scene: Callable[..., Awaitable[None]], *callers: str) -> None:
    async def run() -> None:
        line = Line(*callers)
        try:
            await scene(line)
        finally:
            line.close()

    asyncio.run(run())


def test_who_has_many_in_a_long_line_sends_in_turns_and_who_has_one_does_not() -> None:
    async def scene(line: Line) -> None:
        line.begin("ann")
        line.flood("eve", "mallory")
        assert line.read() == {"ann"}
        assert line.turns.marked_total == 2

    play(scene, "ann", "eve", "mallory")


def test_a_short_line_keeps_nobody_waiting() -> None:
    async def scene(line: Line) -> None:
        line.begin("ann")
        line.begin("eve", 100)
        line.turns.waited(fair_reading.LONG_LINE_S / 2, asyncio.get_running_loop().time())
        assert line.read() == {"ann", "eve"}

    play(scene, "ann", "eve")


def test_who_is_alone_may_send_as_much_as_it_likes() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve")
        line.turns.saw_many("eve", asyncio.get_running_loop().time())
        assert line.read() == {"eve"}

    play(scene, "eve")


def test_many_calls_that_wait_to_be_carried_out_are_enough() -> None:
    async def scene(line: Line) -> None:
        line.begin("ann")
        line.begin("eve")
        line.turns.saw_many("eve", asyncio.get_running_loop().time())
        assert line.read() == {"ann"}

    play(scene, "ann", "eve")


def test_one_is_read_at_a_time_and_the_next_when_its_first_call_begins() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve", "mallory")
        for name in ("eve", "mallory"):
            line.of[name].say()
        seen = []
        for _ in range(4):
            await asyncio.sleep(0)  # the loop sees which connections have data
            await asyncio.sleep(0)
            (one,) = line.read()
            seen.append(one)
            line.of[one].take()
            line.of[one].say()
            line.begin(one, 10)
        assert sorted(seen[:2]) == sorted(seen[2:]) == ["eve", "mallory"], seen

    play(scene, "eve", "mallory")


def test_connections_that_bring_one_call_each_are_read_together_and_one_that_brings_more_alone() -> (
    None
):
    async def scene(line: Line) -> None:
        names = [f"eve-{i}" for i in range(CALLS_OF_A_TURN + 2)]
        line.begin("ann")
        for name in names:
            line.join("eve", name)
        line.begin("eve", MANY, names[0])
        line.turns.waited(1.0, asyncio.get_running_loop().time())
        for name in names:
            line.of[name].say()

        async def turn() -> set[str]:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return line.read() - {"ann"}

        for name in names:  # what each of them brings is not known yet
            assert await turn() == {name}
            line.begin("eve", CALLS_OF_A_TURN if name == names[0] else 1, name)
        together = await turn()
        assert together == {names[0]}, "its last turn was longest ago, and full"
        line.begin("eve", CALLS_OF_A_TURN, names[0])
        together = await turn()
        assert together == set(names[1 : CALLS_OF_A_TURN + 1])
        line.begin("eve", 1, names[1])
        assert names[-1] in await turn()
        assert names[0] not in line.read(), "no room beside others"

    play(scene, "ann")


def test_who_had_the_least_of_late_is_read_first() -> None:
    async def scene(line: Line) -> None:
        line.begin("eve", 500)
        line.flood("eve", "mallory")
        for name in ("eve", "mallory"):
            line.of[name].say()
        await asyncio.sleep(0.001)
        assert line.read() == {"mallory"}

    play(scene, "eve", "mallory")


def test_who_sends_no_call_loses_its_turn_at_once() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve", "mallory")
        line.of["eve"].say()
        await asyncio.sleep(0.001)
        assert line.read() == {"eve"}
        line.of["eve"].take()
        line.of["mallory"].say()
        await _until(lambda: line.read() == {"mallory"})

    play(scene, "eve", "mallory")


def test_who_is_held_for_another_reason_takes_nobodys_turn() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve", "mallory")
        line.of["eve"].stop("busy")
        line.of["eve"].say()
        line.of["mallory"].say()
        await _until(lambda: line.read() == {"mallory"})
        line.begin("mallory")
        line.of["eve"].go_on("busy")
        line.of["mallory"].take()
        await _until(lambda: line.read() == {"eve"})

    play(scene, "eve", "mallory")


def test_a_new_connection_of_one_in_turns_waits_too_and_a_closed_one_is_forgotten() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve", "mallory")
        second = line.join("eve", "second")
        assert not second.is_read
        second.say()
        await asyncio.sleep(0.001)
        assert line.read() == {"second"}
        line.turns.left("eve", second)
        line.of.pop("second").close()
        line.of["eve"].say()
        await asyncio.sleep(0.001)
        assert line.read() == {"eve"}
        line.turns.left("eve", line.of["eve"])
        line.turns.left("mallory", line.of["mallory"])

    play(scene, "eve", "mallory")


def test_who_sends_few_for_long_enough_is_read_as_always_again() -> None:
    async def scene(line: Line) -> None:
        line.flood("eve", "mallory")
        loop = asyncio.get_running_loop()
        began_s, real = loop.time(), loop.time
        loop.time = lambda: real() + REMEMBERED_S + 1  # type: ignore[method-assign]
        try:
            assert loop.time() > began_s + REMEMBERED_S
            line.join("ann")
            line.of["eve"].say()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert line.read() == {"ann", "eve", "mallory"}
        finally:
            loop.time = real  # type: ignore[method-assign]

    play(scene, "eve", "mallory")


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
