"""MIG instances made on demand, over a card that refuses what a real one refuses, killed anywhere: instances never overlap, none is
destroyed that is in use or that we did not make, and after a restart ledger and card agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.core.gpus.cuts import NoRoom, shortage
from nodeagent.ports.gpus import MigReading, NodeReading
from nodeagent.ports.mig import (
    Cut,
    CutState,
    MigDevice,
    MigInstance,
    MigOutcome,
    MigPlace,
    MigProcess,
    MigProfile,
    MigState,
    Span,
)
from nodeagent.shell.gpus.cuts import Cuts, MigWish
from nodeagent.shell.gpus.holders import Holders
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import MIB, Bytes, GpuUuid
from tests.kit.clock import ManualClock
from tests.kit.fakes.nvml import gpu_reading

READING = gpu_reading(0)
CARD = READING.uuid


def _profile(name: str, slices: int, most: int, size: int, *starts: int) -> MigProfile:
    spans = tuple(Span(at, size) for at in starts)
    return MigProfile(name, 0, slices, most, Bytes(size * 10 * 1024 * MIB), spans)


H100 = (
    _profile("1g.10gb", 1, 7, 1, 0, 1, 2, 3, 4, 5, 6),
    _profile("1g.10gb+me", 1, 1, 1, 0, 1, 2, 3, 4, 5, 6),
    _profile("1g.20gb", 1, 4, 2, 0, 2, 4, 6),
    _profile("2g.20gb", 2, 3, 2, 0, 2, 4),
    _profile("3g.40gb", 3, 2, 4, 0, 4),
    _profile("4g.40gb", 4, 1, 4, 0),
    _profile("7g.80gb", 7, 1, 8, 0),
)
FOREIGN = MigPlace("1g.10gb", Span(6, 1))


class Killed(BaseException):
    """The daemon, here."""


@dataclass
class World:
    """State that outlives the daemon: the card, the ledger's file, grants and programs."""

    instances: dict[MigPlace, bool] = field(default_factory=dict)
    """Instances of the card; True if the compute instance exists, too."""
    rows: dict[tuple[GpuUuid, MigPlace], Cut] = field(default_factory=dict)
    grants: set[GpuUuid] = field(default_factory=set)
    contexts: set[MigPlace] = field(default_factory=set)
    steps_to_live: int | None = None
    dead: bool = False
    foreign: frozenset[MigPlace] = frozenset()
    """Made by another program."""

    def step(self) -> None:
        if self.steps_to_live is not None:
            self.steps_to_live -= 1
            self.dead |= self.steps_to_live < 0
        if self.dead:
            raise Killed

    # --- the card ---

    def state(self) -> MigState:
        places = sorted(self.instances, key=lambda one: one.span)
        return MigState(
            CARD,
            0,
            "H100",
            True,
            True,
            True,
            H100,
            tuple(
                MigInstance(number(one), one.profile, 0, one.span, devices(one) if self.instances[one] else ())
                for one in places
            ),
            tuple(MigProcess(7, "program", 0, number(one)) for one in sorted(self.contexts)),
        )  # fmt: skip

    def destroy(self, place: MigPlace) -> None:
        assert place not in self.foreign, "it was not ours"
        assert uuid_of(place) not in self.grants, "there is a grant on it"
        assert place not in self.contexts, "there is a context on it"
        if self.instances[place]:
            self.instances[place] = False
            self.step()
        del self.instances[place]

    def make(self, place: MigPlace) -> None:
        if place not in self.instances:
            assert not any(one.span.overlaps(place.span) for one in self.instances), place
            assert shortage(H100, [*self.instances, place]) is None
            self.instances[place] = False
            self.step()
        self.instances[place] = True

    # --- MigPort ---

    async def states(self) -> tuple[MigState, ...]:
        self.step()
        return (self.state(),)

    async def edit(
        self, gpu: GpuUuid, remove: tuple[MigPlace, ...], make: MigPlace | None
    ) -> MigOutcome:
        before = self.state()
        self.step()
        if self.contexts & set(remove):
            return MigOutcome(before, before, "in use")
        for one in remove:
            if one in self.instances:
                self.destroy(one)
                self.step()
        if make is not None:
            self.make(make)
            self.step()
        return MigOutcome(before, self.state())

    # --- CutLedger ---

    def load(self) -> list[Cut]:
        return list(self.rows.values())

    async def commit(self, put: Sequence[Cut], drop: Sequence[Cut] = ()) -> None:
        self.step()
        for row in drop:
            self.rows.pop(row.key, None)
        self.rows |= {row.key: row for row in put}
        self.step()

    def close(self) -> None:
        return None

    # --- Keeper, as far as it is asked, and the journal ---

    def live(self) -> dict[str, Any]:
        return {gpu: _Held(gpu) for gpu in self.grants}

    def tenant_pids(self) -> set[int]:
        return set()

    def apply(self, event: object) -> None:
        self.step()

    def record(self, *words: object, **more: object) -> bool:
        return True


class _Held:
    """Fake of an entry in `Keeper.live`, with the fields that are read."""

    def __init__(self, gpu: GpuUuid) -> None:
        self.slots: tuple[int, ...] = ()
        self.record = self
        self.grant, self.container, self.name = f"grant-of-{gpu}", None, "job"
        self.devices, self.gpu = (self,), gpu
        self.owner, self.uid = self, 0


def number(place: MigPlace) -> int:
    return place.span.start + 10 * place.span.size + len(place.profile) * 100


def uuid_of(place: MigPlace) -> GpuUuid:
    return GpuUuid(f"MIG-{place.profile}-{place.span.start}")


def devices(place: MigPlace) -> tuple[MigDevice, ...]:
    return (MigDevice(uuid_of(place), 0, 0),)


class Daemon:
    def __init__(self, world: World) -> None:
        world.dead, world.steps_to_live = False, None
        self.world = world
        self.gpus = Gpus(1, 0)
        keeper = cast(Any, world)
        holders = Holders(keeper)
        self.cuts = Cuts(
            world,
            world,
            keeper,
            self.gpus,
            holders,
            keeper,
            ManualClock(),
            asyncio.Lock(),
            self.read,
            pytest.fail,
        )

    async def read(self) -> None:
        self.world.step()
        mig = tuple(
            MigReading(uuid_of(one), one.profile, number(one), 0, Bytes(1 << 30), None, one.span.start, one.span.size)
            for one, whole in self.world.instances.items()
            if whole
        )  # fmt: skip
        self.gpus.take(NodeReading((replace(READING, mig=mig),)), 0)

    async def start(self) -> None:
        await self.read()
        self.cuts.remember()
        await self.cuts.start()

    async def ask(self, wish: MigWish) -> GpuUuid | None:
        try:
            async with self.cuts.instance(wish, "a test") as uuid:
                self.world.step()  # killed between the instance and its grant
                assert uuid not in self.world.grants, "two have it"
                assert uuid in {unit.uuid for unit in self.gpus.units()}
                self.world.grants.add(uuid)
                return uuid
        except NoRoom:
            return None


PROFILES = st.sampled_from([one.name for one in H100])
STEP = st.one_of(
    st.tuples(st.just("ask"), PROFILES, st.one_of(st.none(), st.integers(0, 7))),
    st.tuples(st.just("end"), st.integers(0, 7), st.none()),
    st.tuples(st.just("context"), st.integers(0, 7), st.none()),
    st.tuples(st.just("leave"), st.integers(0, 7), st.none()),
    st.tuples(st.just("doom"), st.integers(0, 14), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=3, max_size=30), st.booleans())
def test_whatever_is_asked_and_whenever_it_is_killed(
    steps: list[tuple[str, Any, Any]], with_foreign: bool
) -> None:
    world = World({FOREIGN: True}, foreign=frozenset({FOREIGN})) if with_foreign else World()

    async def play() -> None:
        daemon = Daemon(world)
        await daemon.start()
        for what, one, other in steps:
            held = sorted(world.grants)
            try:
                if what == "ask":
                    spans = () if other is None else tuple(s for p in H100 if p.name == one for s in p.spans if s.start == other)  # fmt: skip
                    await daemon.ask(MigWish(one, CARD, spans))
                elif what == "end" and held:
                    world.grants.discard(held[one % len(held)])
                elif what == "context":
                    usable = sorted(p for p, whole in world.instances.items() if whole)
                    world.contexts |= set(usable[one : one + 1])
                elif what == "leave":
                    world.contexts -= set(sorted(world.contexts)[one : one + 1])
                elif what == "doom":
                    world.steps_to_live = one
                elif what == "restart":
                    raise Killed
            except Killed:
                daemon = Daemon(world)
                await daemon.start()
                agree(world)
        world.dead, world.steps_to_live = False, None
        await daemon.cuts.look()
        agree(world)
        if with_foreign:
            assert world.instances[FOREIGN], "it stays as it was"

    asyncio.run(play())


def agree(world: World) -> None:
    ours = {place for _, place in world.rows}
    assert ours == world.instances.keys() - world.foreign
    for row in world.rows.values():
        whole = world.instances[row.place]
        assert (row.state, row.uuid) == (CutState.MADE, uuid_of(row.place) if whole else None)


def test_one_that_nobody_uses_is_had_again_and_goes_only_when_its_room_is_wanted() -> None:
    world = World()

    async def play() -> None:
        daemon = Daemon(world)
        await daemon.start()
        first = await daemon.ask(MigWish("3g.40gb"))
        assert first == uuid_of(MigPlace("3g.40gb", Span(4, 4))), "4g has only the first half"
        world.grants.clear()
        assert await daemon.ask(MigWish("3g.40gb")) == first
        assert daemon.cuts.made_total == 1
        assert await daemon.ask(MigWish("7g.80gb")) is None, "it is in use"
        await daemon.ask(MigWish("1g.10gb"))
        world.grants.clear()
        world.contexts.add(MigPlace("3g.40gb", Span(4, 4)))
        assert await daemon.ask(MigWish("7g.80gb")) is None, "there is a context on it"
        assert MigPlace("3g.40gb", Span(4, 4)) in world.instances
        world.contexts.clear()
        assert await daemon.ask(MigWish("7g.80gb")) == uuid_of(MigPlace("7g.80gb", Span(0, 8)))
        assert list(world.instances) == [MigPlace("7g.80gb", Span(0, 8))]

    asyncio.run(play())


def test_two_who_ask_at_once_are_never_given_the_same() -> None:
    world = World()

    async def play() -> None:
        daemon = Daemon(world)
        await daemon.start()
        found = await asyncio.gather(*(daemon.ask(MigWish("1g.10gb")) for _ in range(9)))
        had = [one for one in found if one is not None]
        assert len(had) == len(set(had)) == 7

    asyncio.run(play())
