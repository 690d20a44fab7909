"""Memory that is lent: together never more than the card, guaranteed memory never lent away, and what is not held comes back
when a request needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.lending import GRANULE, Borrower, lend, taken_back
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.states import Held, Rules
from nodeagent.ports.clients import GrantAsk, MemoryAsk, ResizeAsk
from nodeagent.ports.processes import Process
from nodeagent.shell.grants.lender import Lender
from nodeagent.units import (
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    Ppm,
    RequestId,
    SharePolicy,
    SlotIndex,
)
from tests.kit.clock import ManualClock

MIB, GIB = 1 << 20, 1 << 30
GPU = GpuCapacity(GpuUuid("GPU-0"), 0, "a card", Bytes(80 * GIB), Bytes(80 * GIB), 10)


def borrower(
    name: str, request: int, limit: int, has: int, used: int = 0, priority: int = 0
) -> Borrower:
    return Borrower(GrantId(name), GPU.uuid, priority, 0.0, request, limit, has, used)


def test_equal_ones_get_equal_parts_up_to_their_limits() -> None:
    here = [
        borrower("a", 10 * GIB, 12 * GIB, 10 * GIB),
        borrower("b", 10 * GIB, 80 * GIB, 10 * GIB),
    ]
    assert lend(20 * GIB, here) == {"a": 12 * GIB, "b": 28 * GIB}


def test_a_higher_priority_has_all_it_may_before_the_next_one_has_any() -> None:
    here = [
        borrower("low", 1 * GIB, 80 * GIB, 1 * GIB),
        borrower("high", 1 * GIB, 16 * GIB, 1 * GIB, priority=5),
    ]
    assert lend(15 * GIB, here) == {"high": 16 * GIB}
    assert lend(17 * GIB, here) == {"high": 16 * GIB, "low": 3 * GIB}


def test_a_little_is_not_worth_it_unless_it_is_all_that_is_missing() -> None:
    assert lend(32 * MIB, [borrower("a", GIB, 2 * GIB, GIB)]) == {}
    assert lend(32 * MIB, [borrower("a", GIB, GIB + 8 * MIB, GIB)]) == {"a": GIB + 8 * MIB}


def test_what_is_held_is_kept_and_what_is_not_comes_back() -> None:
    assert (
        taken_back(borrower("a", 4 * GIB, 9 * GIB, 9 * GIB, used=6 * GIB + 1)) == 6 * GIB + GRANULE
    )
    assert taken_back(borrower("a", 4 * GIB, 9 * GIB, 9 * GIB, used=GIB)) == 4 * GIB


amounts = st.integers(0, 40)


@given(
    st.integers(0, 100 * GIB),
    st.lists(st.tuples(amounts, amounts, amounts, st.integers(0, 2)), max_size=6),
)
def test_never_more_than_is_free_nor_than_a_limit_and_nobody_loses(
    free: int, drawn: list[tuple[int, int, int, int]]
) -> None:
    here = [
        borrower(str(i), a * GIB, (a + b + c) * GIB, (a + b) * GIB, priority=p)
        for i, (a, b, c, p) in enumerate(drawn)
    ]
    shall = lend(free, here)
    more = {one.grant: shall.get(one.grant, one.memory_bytes) - one.memory_bytes for one in here}
    assert sum(more.values()) <= free
    for one in here:
        assert 0 <= more[one.grant] <= one.limit_bytes - one.memory_bytes


@dataclass
class Total:
    charged_bytes: int


class Keeper:
    """A real book, and what tenants hold."""

    def __init__(self) -> None:
        self.book = GrantBook(Rules(Nanoseconds(1), Nanoseconds(1), Nanoseconds(1), "boot"))
        self.book.handle(ev.GpusSeen((GPU,)))
        self.before_ask: list[Any] = []
        self.after_ask: list[Any] = []
        self.used: dict[str, int] = {}
        self.published: list[tuple[str, int]] = []
        self.told: list[Any] = []

    def live(self) -> Mapping[GrantId, Held]:
        return self.book.grants

    def grant(self, grant: GrantId | None) -> Held | None:
        return self.book.grants.get(grant) if grant is not None else None

    def waiting(self) -> int:
        return len(self.book.queue)

    def loads(self) -> Any:
        return self.book.loads()

    def look(self, grant: GrantId, opened: Any) -> None: ...

    def opened(self, grant: GrantId | None) -> Any:
        used = self.used.get(str(grant), 0)
        account = type("Account", (), {"total": lambda self, index: Total(used)})()
        return type("Open", (), {"account": account})()

    def apply(self, event: ev.Event) -> None:
        for do in self.book.handle(event):
            if isinstance(do, ev.MakeRegion):
                self.apply(ev.RegionReady(do.record.grant))
            elif isinstance(do, ev.Publish):
                self.published.append((do.grant, do.limits[0].memory_limit_bytes))
            elif isinstance(do, ev.TellRefused):
                self.told.append(do.reason)

    def ask(self, name: str, limit: int, request: int | None = None, wait: bool = False) -> bool:
        for call in self.before_ask:
            call()
        asked = GrantAsk(
            1,
            MemoryAsk(amount_bytes=Bytes(limit)),
            Ppm(10_000),
            SharePolicy.ELASTIC,
            request=None if request is None else MemoryAsk(amount_bytes=Bytes(request)),
        )
        number = RequestId(len(self.book.grants) + len(self.told) + 1)
        owner = Process(1, 1, 0, 0)
        self.apply(ev.Asked(number, GrantId(name), asked, owner, 0.0, may_wait=wait))
        return GrantId(name) in self.book.grants

    def has(self, name: str) -> int:
        return int(self.book.grants[GrantId(name)].record.devices[0].memory_bytes)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


PAUSE_S = 60.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lender(keeper: Keeper, clock: ManualClock) -> Lender:
    return Lender(keeper, lambda: [GPU], lambda error: None, clock, PAUSE_S)  # type: ignore[arg-type]  # a stand-in


def joined(keeper: Keeper, grant: str, pid: int) -> None:
    """A process joins the grant."""
    held = keeper.book.grants[GrantId(grant)]
    held.slots[SlotIndex(pid)] = Process(pid, pid, 0, 0)


def test_what_is_free_is_lent_once_before_the_first_process_measures(
    keeper: Keeper, lender: Lender, clock: ManualClock
) -> None:
    """A grant that waited can have a process before the daemon lends again."""
    keeper.ask("a", 60 * GIB, 20 * GIB)
    joined(keeper, "a", 1)
    lender.look()
    assert keeper.has("a") == 60 * GIB


def test_nothing_is_lent_or_taken_back_while_a_process_is_new(
    keeper: Keeper, lender: Lender, clock: ManualClock
) -> None:
    keeper.ask("full", 50 * GIB)
    keeper.ask("a", 80 * GIB, 20 * GIB)
    lender.look()
    joined(keeper, "a", 1)
    keeper.apply(ev.Released(GrantId("full")))
    keeper.apply(ev.OwnerGone(GrantId("full")))
    keeper.book.grants.pop(GrantId("full"), None)
    for _ in range(int(PAUSE_S)):
        lender.look()
        assert keeper.has("a") == 30 * GIB, "what was free when it started"
        clock.advance(1)
    lender.look()
    assert keeper.has("a") == 80 * GIB
    joined(keeper, "a", 2)
    assert not keeper.ask("b", 10 * GIB), "the second process is new"
    assert "more is lent)" in keeper.told[-1]
    clock.advance(PAUSE_S)
    assert keeper.ask("b", 10 * GIB)


def test_processes_that_start_all_the_time_keep_a_loan_for_one_pause_only(
    keeper: Keeper, lender: Lender, clock: ManualClock
) -> None:
    keeper.ask("a", 80 * GIB, 20 * GIB)
    lender.look()
    refused = 0
    for pid in range(1, 100):
        joined(keeper, "a", pid)
        if keeper.ask("b", 10 * GIB):
            break
        refused += 1
        clock.advance(PAUSE_S / 4)
    assert refused == 4


def test_a_borrower_begins_with_its_request_and_soon_has_what_is_free(
    keeper: Keeper, lender: Lender
) -> None:
    assert keeper.ask("a", 60 * GIB, 20 * GIB)
    assert keeper.has("a") == 20 * GIB
    lender.look()
    assert keeper.has("a") == 60 * GIB
    assert keeper.published[-1] == ("a", 60 * GIB)


def test_who_is_guaranteed_takes_the_place_of_what_is_lent_and_not_held(
    keeper: Keeper, lender: Lender
) -> None:
    keeper.ask("a", 80 * GIB, 20 * GIB)
    lender.look()
    keeper.used["a"] = 30 * GIB
    assert keeper.ask("b", 50 * GIB), keeper.told
    assert keeper.has("a") == 30 * GIB
    lender.look()
    assert keeper.has("a") == 30 * GIB, "the card is full"


def test_what_a_borrower_holds_is_not_taken_and_the_refusal_says_so(
    keeper: Keeper, lender: Lender
) -> None:
    keeper.ask("a", 80 * GIB, 20 * GIB)
    lender.look()
    keeper.used["a"] = 40 * GIB
    assert not keeper.ask("b", 50 * GIB)
    assert "40Gi of 80Gi free (20Gi more is lent)" in keeper.told[0]


def test_who_waits_starts_as_soon_as_the_borrower_lets_go(keeper: Keeper, lender: Lender) -> None:
    keeper.ask("a", 80 * GIB, 20 * GIB)
    lender.look()
    keeper.used["a"] = 40 * GIB
    assert not keeper.ask("b", 50 * GIB, wait=True)
    keeper.used["a"] = 25 * GIB
    lender.look()
    assert keeper.has("b") == 50 * GIB
    assert keeper.has("a") == 25 * GIB


def test_requests_together_never_pass_the_card(keeper: Keeper, lender: Lender) -> None:
    assert keeper.ask("a", 80 * GIB, 50 * GIB)
    lender.look()
    assert not keeper.ask("b", 80 * GIB, 31 * GIB)
    assert keeper.ask("c", 80 * GIB, 30 * GIB)


def test_resize_moves_the_limit_and_lends_what_is_free(keeper: Keeper, lender: Lender) -> None:
    keeper.ask("a", 40 * GIB, 20 * GIB)
    lender.look()
    keeper.apply(
        ev.Resized(GrantId("a"), ResizeAsk(memory=MemoryAsk(amount_bytes=Bytes(60 * GIB))))
    )
    assert keeper.has("a") == 40 * GIB
    lender.look()
    assert keeper.has("a") == 60 * GIB
    keeper.apply(
        ev.Resized(GrantId("a"), ResizeAsk(memory=MemoryAsk(amount_bytes=Bytes(10 * GIB))))
    )
    assert keeper.has("a") == 10 * GIB


def test_a_grant_without_a_request_is_never_lent_from(keeper: Keeper, lender: Lender) -> None:
    keeper.ask("a", 40 * GIB)
    keeper.apply(ev.Lent(GrantId("a"), (Bytes(1),)))
    lender.look()
    assert keeper.has("a") == 40 * GIB


def test_more_than_is_free_is_not_lent_whoever_says_so(keeper: Keeper, lender: Lender) -> None:
    keeper.ask("a", 80 * GIB, 20 * GIB)
    keeper.ask("b", 50 * GIB)
    keeper.apply(ev.Lent(GrantId("a"), (Bytes(80 * GIB),)))
    assert keeper.has("a") == 30 * GIB


def test_a_request_above_the_limit_cannot_be(keeper: Keeper) -> None:
    """Where both are amounts it is refused before; a part is only known on the card."""
    assert keeper.ask("a", 20 * GIB, 40 * GIB)
    assert keeper.has("a") == 20 * GIB
