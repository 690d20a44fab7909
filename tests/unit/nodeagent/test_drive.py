"""One rule for everything that fails while a book's instructions are carried out: what is kept, what is reported, and to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nodeagent.core.flight import Tape
from nodeagent.ports.clients import RefusalKind, Refused
from nodeagent.ports.ledger import LedgerFull, LedgerLost
from nodeagent.shell.drive import Drive


class Echo:
    """A book of words: "a b" asks for "a" and then "b"; "no" is refused."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def handle(self, event: str, now_ns: int) -> list[str]:
        if event == "no":
            raise Refused(RefusalKind.INVALID, "no")
        self.heard.append(event)
        return event.split()


class WorkloadActions:
    """Carries out: fails at the given words, and brings events at others."""

    def __init__(self) -> None:
        self.book = Echo()
        self.fatal: list[BaseException] = []
        self.tape: Tape[str] = Tape(lambda: ())
        self.drive: Drive[str, str] = Drive(self.book, lambda: 7, self.fatal.append, self.tape)
        self.done: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.brings: dict[str, Callable[[], None]] = {}

    def carry_out(self, do: str) -> None:
        self.done.append(do)
        if do in self.brings:
            self.brings[do]()
        if do in self.fails:
            raise self.fails[do]

    def run(self, event: str) -> None:
        self.drive.run(event, self.carry_out)


@pytest.fixture
def hands() -> WorkloadActions:
    return WorkloadActions()


def test_an_event_from_the_middle_waits_until_all_of_the_one_before_is_done(
    hands: WorkloadActions,
) -> None:
    hands.brings = {"a": lambda: hands.run("c"), "b": lambda: hands.drive.add("d")}
    hands.run("a b")
    assert hands.done == ["a", "b", "c", "d"]
    noted = [(one["value"], one["at_ns"], one["did"]) for one in hands.tape.plain()["events"]]
    assert noted == [("a b", 7, ["str", "str"]), ("c", 7, ["str"]), ("d", 7, ["str"])]
    assert hands.drive.line == ()


def test_what_was_ordered_behind_a_failure_is_dropped_and_what_has_happened_is_kept(
    hands: WorkloadActions,
) -> None:
    hands.brings = {"a": lambda: hands.drive.add("d e")}
    hands.fails = {"b": OSError("disk")}
    with pytest.raises(OSError, match="disk"):
        hands.run("a b c")
    assert hands.done == ["a", "b", "d", "e"]
    assert hands.book.heard == ["a b c", "d e"]
    hands.run("f")
    assert hands.done[-1] == "f"
    assert hands.fatal == []


def test_the_first_failure_is_raised_and_the_others_are_logged(
    hands: WorkloadActions, caplog: pytest.LogCaptureFixture
) -> None:
    hands.brings = {"a": lambda: hands.drive.add("b")}
    hands.fails = {"a": OSError("first"), "b": ValueError("second")}
    with pytest.raises(OSError, match="first"):
        hands.run("a")
    assert [one.getMessage() for one in caplog.records] == ["str: second"]


def test_a_full_ledger_is_said_and_the_next_instruction_follows(
    hands: WorkloadActions, caplog: pytest.LogCaptureFixture
) -> None:
    hands.fails = {"a": LedgerFull("no space")}
    hands.run("a b")
    assert hands.done == ["a", "b"]
    assert [one.getMessage() for one in caplog.records] == ["the ledger is full: no space"]


def test_a_lost_ledger_is_fatal_once_and_nothing_more_is_done(hands: WorkloadActions) -> None:
    hands.brings = {"a": lambda: hands.drive.add("d")}
    hands.fails = {"a": LedgerLost("gone")}
    with pytest.raises(LedgerLost):
        hands.run("a b")
    assert hands.done == ["a"]
    assert hands.drive.line == ()
    assert [str(one) for one in hands.fatal] == ["gone"]


def test_a_refusal_reaches_whoever_brought_the_event(hands: WorkloadActions) -> None:
    with pytest.raises(Refused):
        hands.run("no")
    hands.run("a")
    assert hands.book.heard == ["a"]


def test_a_refused_event_in_line_keeps_nobody_behind_it_waiting(hands: WorkloadActions) -> None:
    def bring() -> None:
        hands.drive.add("no")
        hands.drive.add("b")

    hands.brings = {"a": bring}
    with pytest.raises(Refused):
        hands.run("a")
    assert hands.done == ["a", "b"]


def test_nothing_follows_from_nothing(hands: WorkloadActions) -> None:
    with pytest.raises(AssertionError):
        hands.drive.add("a")


def test_a_turn_under_way_takes_an_event_over_and_nobody_waits_for_it(
    hands: WorkloadActions,
) -> None:
    async def scene() -> None:
        door = asyncio.Event()

        async def slowly(do: str) -> None:
            if do == "a":
                await door.wait()
            hands.carry_out(do)

        turn = asyncio.create_task(hands.drive.run_async("a b", slowly))
        await asyncio.sleep(0)
        await asyncio.wait_for(hands.drive.run_async("c", slowly), 1)
        assert (hands.done, hands.drive.line) == ([], ("c",))
        door.set()
        await turn
        assert hands.done == ["a", "b", "c"]

    asyncio.run(scene())


def test_after_a_turn_that_was_cancelled_the_next_event_finds_the_line_as_it_was(
    hands: WorkloadActions,
) -> None:
    async def scene() -> None:
        async def never(do: str) -> None:
            hands.drive.add("c")
            await asyncio.Event().wait()

        turn = asyncio.create_task(hands.drive.run_async("a b", never))
        await asyncio.sleep(0)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        hands.run("d")
        assert hands.done == ["c", "d"]

    asyncio.run(scene())
