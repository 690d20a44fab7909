"""The flight recorder: a recorded run replays with the same decisions and ends in the same state, has no secrets, and is
bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodeagent.core import flight
from nodeagent.core.flight import LEFT_OUT, LENGTH, Tape, dump, replay
from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.states import Rules
from nodeagent.core.kubelet import book as kb
from nodeagent.core.queue import events as qd
from nodeagent.core.queue.book import QueueBook
from nodeagent.core.reducer import Book
from nodeagent.ports.clients import GrantAsk, MemoryAsk, Refused
from nodeagent.ports.kubelet import Allocation, Claim, ContainerLimits, Listing, Nonce, PodIdentity
from nodeagent.ports.processes import Process
from nodeagent.ports.queue import Decision, Desired, Fence, GivenShare, Welcome, WorkKey
from nodeagent.units import (
    GIB,
    NS_PER_S,
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    PodUid,
    Ppm,
    RequestId,
    SharePolicy,
    SlotIndex,
)

BOOT = "6f1ed002-ab5a-4a3c-9f0e-1b2c3d4e5f60"
CARD = GpuCapacity(GpuUuid("GPU-0"), 0, "H200", 140 * GIB, 140 * GIB, 4)
OWNER = Process(100, 1, 1000, 1000, 100)


class Told:
    """A book with its tape, given events one second apart."""

    def __init__(self, book: Any, quiet: frozenset[type] = frozenset()) -> None:
        self.book: Book[Any, Any] = book
        self.tape: Tape[Any] = Tape(book.memory, quiet)
        self.now_ns = 0

    def tell(self, event: Any) -> list[Any]:
        self.now_ns += NS_PER_S
        try:
            done = list(self.book.handle(event, self.now_ns))
        except Refused:
            self.tape.note(event, self.now_ns, None)
            return []
        self.tape.note(event, self.now_ns, done)
        return done


def ask(number: int, cores: int = 300_000, **more: Any) -> ev.Asked:
    wanted = GrantAsk(
        1,
        MemoryAsk(amount_bytes=Bytes(GIB)),
        Ppm(cores),
        SharePolicy.HARD,
        f"j{number}",
        command="curl -H token=s3cret",
    )
    return ev.Asked(RequestId(number), GrantId(f"g{number}"), wanted, OWNER, 1.5, **more)


def grants() -> Told:
    told = Told(
        GrantBook(Rules(Nanoseconds(1), Nanoseconds(2), Nanoseconds(3), BOOT)),
        frozenset({ev.GpusSeen}),
    )
    told.tell(ev.GpusSeen((CARD,)))
    for number in range(5):
        told.tell(ask(number, may_wait=True))
    for number in range(3):
        told.tell(ev.RegionReady(GrantId(f"g{number}")))
    told.tell(ev.SlotAsked(GrantId("g0"), Process(7, 8, 1000, 1000, 7)))
    told.tell(ev.PauseSet(GrantId("g1"), True, lends=True))
    told.tell(ev.Released(GrantId("nobody")))
    told.tell(ev.Released(GrantId("g2")))
    told.tell(ev.SlotGone(GrantId("g0"), SlotIndex(0)))
    return told


def queue() -> Told:
    told = Told(QueueBook(Fence(), [], []), frozenset({qd.Ticked}))
    key = WorkKey("team/w", "")
    decision = Decision(
        "team/w",
        "",
        "u",
        1,
        5,
        Desired.RUN,
        gpus=(GivenShare(CARD.uuid, Bytes(GIB), Ppm(500_000)),),
    )
    told.tell(qd.Welcomed(Welcome("c", 3, 5, 4, 30.0, 5.0, (decision,), proof="s3cret"), 0))
    told.tell(qd.WaiterCame("team/w"))
    told.tell(qd.Ticked())
    told.tell(qd.GrantMade(key, GrantId("g0")))
    told.tell(qd.Renewed(4, 5, 30.0, told.now_ns, proof="s3cret too"))
    told.tell(qd.Disconnected())
    told.tell(qd.Evicted(GrantId("g0"), "the node ended it"))
    told.tell(qd.GrantEnded(GrantId("g0")))
    return told


def kubelet() -> Told:
    told = Told(kb.AllocationBook(kb.KubeletRules(BOOT, 2 * NS_PER_S, 5 * NS_PER_S)))
    row = Allocation(Nonce("n0"), "sluice.dev/gpu", frozenset({"GPU-0::1", "GPU-0::0"}), BOOT, 1.5)
    pod = PodIdentity(PodUid("p0"), "team", "pod")
    limits = ContainerLimits(ask(9).ask, "pod")
    told.tell(kb.Restored((), ()))
    told.tell(kb.Intended((row,)))
    told.tell(
        kb.StartAsked(
            1,
            row.resource,
            row.device_ids,
            pod,
            (Claim(row.nonce, "main"),),
            limits,
            GrantId("g0"),
            2.5,
        )
    )
    told.tell(kb.GrantMade(1, GrantId("g0")))
    for _ in range(3):
        told.tell(
            kb.Looked(
                frozenset({row.nonce}),
                (Listing("team", "other", "main", frozenset({"GPU-0::3"})),),
                frozenset(),
                told.now_ns,
            )
        )
    return told


BOOKS = {"grants": grants, "queue": queue, "kubelet": kubelet}


@pytest.mark.parametrize("name", BOOKS)
def test_a_recorded_run_replays(name: str) -> None:
    told = BOOKS[name]()
    text = dump({name: told.tape}, "1")
    events = json.loads(text)["books"][name]["events"]
    assert len(events) >= 7
    assert sum(bool(one["did"]) for one in events) >= 4, "most of them decided something"
    assert replay(text) == {name: flight.Replayed(len(events), "")}


@pytest.mark.parametrize("name", BOOKS)
def test_what_differs_is_said(name: str) -> None:
    plain = json.loads(dump({name: BOOKS[name]().tape}, "1"))
    first = next(one for one in plain["books"][name]["events"] if one["did"])
    first["did"] = ["SomethingElse"]
    assert "SomethingElse" in replay(json.dumps(plain))[name].differs


def test_another_end_is_said() -> None:
    plain = json.loads(dump({"grants": grants().tape}, "1"))
    plain["books"]["grants"]["end"]["grants"][0]["owner_alive"] = False
    assert replay(json.dumps(plain))["grants"].differs == "the book's state at the end"


def test_a_refusal_replays_as_one() -> None:
    assert ["Refused"] in [one["did"] for one in grants().tape.plain()["events"]]


@pytest.mark.parametrize("name", BOOKS)
def test_a_dump_has_no_command_line_and_no_proof(name: str) -> None:
    text = dump({name: BOOKS[name]().tape}, "1")
    assert "s3cret" not in text
    assert LEFT_OUT in text


def test_the_last_thousand_are_there_and_never_more_than_twice_as_many() -> None:
    told = grants()
    for number in range(3 * LENGTH):
        told.tell(ev.AskEnded(RequestId(10_000 + number)))
        if number % 400 == 399 and number > LENGTH:
            assert LENGTH <= len(told.tape.plain()["events"]) <= 2 * LENGTH
    assert LENGTH <= len(told.tape.plain()["events"]) <= 2 * LENGTH
    assert replay(dump({"grants": told.tape}, "1"))["grants"].differs == ""


def test_what_comes_by_the_clock_and_changes_nothing_takes_no_room() -> None:
    told = grants()
    before = len(told.tape.plain()["events"])
    for _ in range(50):
        told.tell(ev.GpusSeen((CARD,)))
    assert len(told.tape.plain()["events"]) == before
    told.tell(ev.GpusSeen(()))
    assert len(told.tape.plain()["events"]) == before + 1


def test_rules_that_change_begin_a_new_tape() -> None:
    told = grants()
    told.book.rules = Rules(Nanoseconds(9), Nanoseconds(2), Nanoseconds(3), BOOT)  # type: ignore[attr-defined]
    told.tape.cut()
    told.tell(ask(20, may_wait=True))
    assert len(told.tape.plain()["events"]) == 1
    assert replay(dump({"grants": told.tape}, "1"))["grants"].differs == ""


def test_a_dump_too_large_for_anybody_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    told = grants()
    monkeypatch.setattr(flight, "LARGEST_BYTES", 20_000)
    for number in range(200):
        told.tell(ask(100 + number))
    found = told.tape.plain()
    assert len(json.dumps(found)) <= 20_000
    assert found == {} or replay(dump({"grants": told.tape}, "1"))["grants"].differs == ""


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 9"):
        replay('{"version": 9, "books": {}}')
