"""The book of grants under every order of events, and against a naive model of what a GPU can hold."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.spill import NEXT as NEXT_SPILL
from nodeagent.core.grants.spill import SpillSignal
from nodeagent.core.grants.states import Rules
from nodeagent.ports.clients import GrantAsk, MemoryAsk, Refused, ResizeAsk
from nodeagent.ports.ledger import GrantState, Spill
from nodeagent.ports.processes import Process
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

GIB = 2**30
RULES = Rules(
    Nanoseconds(20_000_000),
    Nanoseconds(4_000_000),
    Nanoseconds(200_000),
    "boot",
    max_waiting=4,
    max_grants_per_uid=6,
)


def gpus(count: int, memory_gib: int = 16, slots: int = 3) -> tuple[GpuCapacity, ...]:
    return tuple(
        GpuCapacity(
            GpuUuid(f"GPU-{i}"), i, "card", Bytes(memory_gib * GIB), Bytes(memory_gib * GIB), slots
        )
        for i in range(count)
    )


def process(pid: int) -> Process:
    return Process(pid, pid * 10, 1000, 1000)


def asked(
    number: int, memory_gib: int = 8, share_ppm: int = 500_000, policy: SharePolicy = SharePolicy.HARD,
    may_wait: bool = False, gpu: str | None = None,
) -> ev.Asked:  # fmt: skip
    ask = GrantAsk(
        1, MemoryAsk(amount_bytes=Bytes(memory_gib * GIB)), Ppm(share_ppm), policy,
        gpu_uuids=(GpuUuid(gpu),) if gpu else (),
    )  # fmt: skip
    return ev.Asked(
        RequestId(number), GrantId(f"grant-{number}"), ask, process(number), 0.0, may_wait
    )


def check(book: GrantBook) -> None:
    """Invariants that hold after every event, whatever came before."""
    memory: dict[str, int] = defaultdict(int)
    hard: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for held in book.grants.values():
        assert held.record.state is not GrantState.ENDED, "an ended grant has left the book"
        assert held.record.spill is Spill.RESIDENT or held.record.paused
        if held.record.spill is Spill.SPILLED:  # its room goes to the next request
            continue
        for device in held.record.devices:
            memory[device.gpu] += device.memory_bytes
            count[device.gpu] += 1
            if held.record.policy is SharePolicy.HARD:
                hard[device.gpu] += device.share_ppm
        if held.record.state is GrantState.ENDING:
            assert not held.slots, "no process is registered any more"
    for gpu in book.gpus:
        assert memory[gpu.uuid] <= gpu.memory_bytes
        assert hard[gpu.uuid] <= 1_000_000
        assert count[gpu.uuid] <= gpu.slots


class Shell:
    """Carries out instructions as the real one does, and answers them."""

    def __init__(self) -> None:
        self.regions: set[GrantId] = set()
        self.making: set[GrantId] = set()
        self.answers: list[ev.Event] = []
        self.told: dict[RequestId, list[str]] = defaultdict(list)

    def carry_out(self, instructions: Iterable[ev.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ev.MakeRegion(record, _):
                    self.regions.add(record.grant)
                    self.making.add(record.grant)
                    self.answers.append(ev.RegionReady(record.grant))
                case ev.RemoveRegion(grant):
                    assert grant not in self.making, "removed while it is being made"
                    self.regions.discard(grant)
                    self.answers.append(ev.RegionRemoved(grant))
                case ev.TellGranted(request, _):
                    self.told[request].append("granted")
                case ev.TellRefused(request, _, reason):
                    assert reason
                    self.told[request].append("refused")
                case _:
                    pass


def feed(book: GrantBook, shell: Shell, event: ev.Event) -> None:
    if isinstance(event, ev.RegionReady | ev.RegionFailed):
        shell.making.discard(event.grant)
    refused = None
    try:
        shell.carry_out(book.handle(event))
    except Refused as error:
        refused = error
    if refused is not None:
        assert isinstance(event, ev.Resized | ev.PauseSet | ev.SpillMoved | ev.Released)
        assert str(refused)
    check(book)


def settle(book: GrantBook, shell: Shell) -> None:
    while shell.answers:
        feed(book, shell, shell.answers.pop(0))


def end_everything(book: GrantBook, shell: Shell) -> None:
    for request in [event.request for event in book.queue]:
        feed(book, shell, ev.AskEnded(request))
    settle(book, shell)
    for grant, held in list(book.grants.items()):
        for slot in list(held.slots):
            feed(book, shell, ev.SlotGone(grant, slot))
        feed(book, shell, ev.OwnerGone(grant))
    settle(book, shell)
    assert not book.grants
    assert not book.queue
    assert not shell.regions
    assert all(len(answers) == 1 for answers in shell.told.values()), (
        "every request is answered once"
    )


A, B = GrantId("grant-1"), GrantId("grant-2")
STORIES: dict[str, list[ev.Event]] = {
    "two grants live and end": [
        asked(1), asked(2), ev.SlotAsked(A, process(11)), ev.SlotGone(A, SlotIndex(0)), ev.OwnerGone(A),
        ev.Released(B), ev.OwnerGone(B),
    ],
    "one waits for the other": [
        asked(1, memory_gib=16), asked(2, memory_gib=16, may_wait=True), ev.OwnerGone(A), ev.AskEnded(RequestId(2)),
        ev.Resized(A, ResizeAsk(memory=MemoryAsk(amount_bytes=Bytes(4 * GIB)))), ev.PauseSet(A, True), ev.GpusSeen(()),
    ],
    "regions fail, slots are missed": [
        asked(1), ev.RegionFailed(A, "no space"), ev.SlotAsked(A, process(11), SlotIndex(3), frozenset({SlotIndex(3)})),
        ev.SlotMissed(A, SlotIndex(3)), ev.SlotMissed(A, SlotIndex(0)), ev.Released(A), ev.RegionRemoved(A),
    ],
    "one is spilled and another has its room": [
        asked(1, memory_gib=10), ev.PauseSet(A, True), ev.SpillMoved(A, SpillSignal.BEGIN), ev.SpillMoved(A, SpillSignal.DONE),
        asked(2, memory_gib=10), ev.SpillMoved(A, SpillSignal.RETURN), ev.PauseSet(A, False),
    ],
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
@pytest.mark.parametrize("answered", ["at once", "at the end"])
def test_every_order_of_events_is_survived_and_ends_empty(
    story: list[ev.Event], answered: str
) -> None:
    for order in itertools.permutations(story):
        book, shell = GrantBook(RULES), Shell()
        feed(book, shell, ev.GpusSeen(gpus(1)))
        for event in order:
            feed(book, shell, event)
            if answered == "at once":
                settle(book, shell)
        settle(book, shell)
        end_everything(book, shell)


@pytest.mark.parametrize("signal", list(SpillSignal))
@pytest.mark.parametrize("at", list(Spill))
def test_each_step_of_memory_leads_on_or_changes_nothing(at: Spill, signal: SpillSignal) -> None:
    """After a daemon that was killed anywhere, too."""
    book, shell = GrantBook(RULES), Shell()
    feed(book, shell, ev.GpusSeen(gpus(1)))
    feed(book, shell, asked(1))
    settle(book, shell)
    record = replace(book.grants[A].record, paused=True, spill=at)
    book, shell = GrantBook(RULES), Shell()
    feed(book, shell, ev.GpusSeen(gpus(1)))
    feed(book, shell, ev.Restored(record, True, ((SlotIndex(0), process(11)),)))
    feed(book, shell, ev.SpillMoved(A, signal, 7.0, (Bytes(5 * GIB),)))
    after = book.grants[A].record
    assert after.spill is NEXT_SPILL.get((at, signal), at)
    if after.spill is Spill.RESIDENT:
        assert (after.spilled_bytes, after.spilled_unix_s) == ((), 0.0)
    fresh = book.handle(ev.SlotAsked(A, process(12)))
    assert isinstance(fresh[0], ev.OwnSlot if after.spill is Spill.RESIDENT else ev.RefuseSlot)


class AgainstAModel(RuleBasedStateMachine):
    """Grants on named GPUs: given exactly when a naive sum says there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.book = GrantBook(RULES)
        self.shell = Shell()
        self.number = 0
        self.model: dict[GrantId, tuple[str, int, int, bool]] = {}
        self.spilled: set[GrantId] = set()

    @initialize(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        self.gpus = gpus(count)
        feed(self.book, self.shell, ev.GpusSeen(self.gpus))

    def room(self, gpu: str, but: GrantId | None = None) -> tuple[int, int, int]:
        here = [
            m
            for grant, m in self.model.items()
            if m[0] == gpu and grant != but and grant not in self.spilled
        ]
        return (
            16 * GIB - sum(m[1] for m in here),
            1_000_000 - sum(m[2] for m in here if m[3]),
            3 - len(here),
        )

    @rule(
        gpu=st.integers(0, 2),
        memory_gib=st.integers(1, 18),
        share=st.integers(10_000, 1_000_000),
        hard=st.booleans(),
    )
    def ask(self, gpu: int, memory_gib: int, share: int, hard: bool) -> None:
        self.number += 1
        name = f"GPU-{gpu}"
        policy = SharePolicy.HARD if hard else SharePolicy.ELASTIC
        event = asked(self.number, memory_gib, share, policy, gpu=name)
        feed(self.book, self.shell, event)
        settle(self.book, self.shell)
        memory, time, slots = self.room(name)
        fits = (
            gpu < len(self.gpus) and memory_gib * GIB <= memory and slots > 0 and (not hard or share <= time)
            and len(self.model) < RULES.max_grants_per_uid
        )  # fmt: skip
        assert (event.grant in self.book.grants) == fits
        assert self.shell.told[event.request] == ["granted" if fits else "refused"]
        if fits:
            self.model[event.grant] = (name, memory_gib * GIB, share, hard)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), memory_gib=st.integers(1, 18), share=st.integers(10_000, 1_000_000))
    def resize(self, data: st.DataObject, memory_gib: int, share: int) -> None:
        grant = data.draw(st.sampled_from(sorted(self.model)))
        name, had, had_share, hard = self.model[grant]
        memory, time, _ = self.room(name, but=grant)
        want = memory_gib * GIB
        shrinks = want <= had and (not hard or share <= had_share)
        fits = shrinks or (want <= memory and want <= 16 * GIB and (not hard or share <= time))
        event = ev.Resized(
            grant, ResizeAsk(memory=MemoryAsk(amount_bytes=Bytes(want)), share_ppm=Ppm(share))
        )
        feed(self.book, self.shell, event)
        device = self.book.grants[grant].record.devices[0]
        if fits:
            self.model[grant] = (name, want, share, hard)
        assert (device.memory_bytes, device.share_ppm) == self.model[grant][1:3]

    def spill_signal(self, grant: GrantId, signal: SpillSignal) -> Spill:
        feed(self.book, self.shell, ev.SpillMoved(grant, signal))
        return self.book.grants[grant].record.spill

    @precondition(lambda self: self.model.keys() - self.spilled)
    @rule(data=st.data(), done=st.booleans())
    def spill(self, data: st.DataObject, done: bool) -> None:
        grant = data.draw(st.sampled_from(sorted(self.model.keys() - self.spilled)))
        feed(self.book, self.shell, ev.PauseSet(grant, True))
        assert self.spill_signal(grant, SpillSignal.BEGIN) is Spill.SPILLING
        after = self.spill_signal(grant, SpillSignal.DONE if done else SpillSignal.UNDONE)
        assert after is (Spill.SPILLED if done else Spill.RESIDENT)
        if done:
            self.spilled.add(grant)

    @precondition(lambda self: self.spilled)
    @rule(data=st.data(), back=st.booleans())
    def bring_back(self, data: st.DataObject, back: bool) -> None:
        """Exactly when the naive sum says that there is room, where it was."""
        grant = data.draw(st.sampled_from(sorted(self.spilled)))
        name, had, share, hard = self.model[grant]
        memory, time, slots = self.room(name)
        fits = had <= memory and slots > 0 and (not hard or share <= time)
        feed(self.book, self.shell, ev.PauseSet(grant, False))
        assert self.book.grants[grant].record.paused, "not before its memory is back"
        after = self.spill_signal(grant, SpillSignal.RETURN)
        assert after is (Spill.RETURNING if fits else Spill.SPILLED)
        if fits:
            after = self.spill_signal(grant, SpillSignal.BACK if back else SpillSignal.STAYED)
            assert after is (Spill.RESIDENT if back else Spill.SPILLED)
            if back:
                self.spilled.discard(grant)
                feed(self.book, self.shell, ev.PauseSet(grant, False))
                assert not self.book.grants[grant].record.paused

    @precondition(lambda self: self.model)
    @rule(data=st.data(), how=st.sampled_from(["owner", "release"]))
    def end(self, data: st.DataObject, how: str) -> None:
        grant = data.draw(st.sampled_from(sorted(self.model)))
        feed(self.book, self.shell, ev.OwnerGone(grant) if how == "owner" else ev.Released(grant))
        settle(self.book, self.shell)
        assert grant not in self.book.grants
        del self.model[grant]
        self.spilled.discard(grant)

    @invariant()
    def the_book_holds_what_the_model_holds(self) -> None:
        assert set(self.book.grants) == set(self.model)

    def teardown(self) -> None:
        end_everything(self.book, self.shell)


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
