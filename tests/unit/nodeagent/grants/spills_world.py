"""A driver that checkpoints processes, a ledger and a card, which outlive the desk that uses them; any act of theirs may be
the one at which the daemon is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.book import GrantBook
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.grants.states import Held, Rules
from nodeagent.ports.driver.checkpoint import CheckpointFailed, CheckpointState, CheckpointStep
from nodeagent.ports.gpus import GpuReading, ProcessReading
from nodeagent.ports.ledger import DeviceShare, GrantRecord, GrantState, Spill
from nodeagent.ports.processes import Process
from nodeagent.settings.daemon import CheckpointSettings
from nodeagent.shell.grants.spills import SpillManager
from nodeagent.shell.journal import Journal
from nodeagent.units import Bytes, GpuUuid, GrantId, Nanoseconds, Ppm, SharePolicy, SlotIndex
from tests.kit.clock import ManualClock

GIB = 1 << 30
GPU, G = GpuUuid("GPU-0"), GrantId("11111111-grant")
CARD = 80 * GIB
NEXT = {
    (CheckpointState.RUNNING, CheckpointStep.LOCK): CheckpointState.LOCKED,
    (CheckpointState.LOCKED, CheckpointStep.CHECKPOINT): CheckpointState.CHECKPOINTED,
    (CheckpointState.CHECKPOINTED, CheckpointStep.RESTORE): CheckpointState.LOCKED,
    (CheckpointState.LOCKED, CheckpointStep.UNLOCK): CheckpointState.RUNNING,
}


class Killed(BaseException):
    """The daemon ends here."""


def process(pid: int) -> Process:
    return Process(pid, pid * 10, 1000, 1000)


@dataclass
class World:
    """Implements HostRoom, and what the desk asks of a keeper."""

    processes: Mapping[int, int] = field(default_factory=lambda: {1: 10 * GIB, 2: 20 * GIB})
    """GPU memory of each process, in bytes."""
    states: dict[int, CheckpointState] = field(default_factory=dict)
    ledger: dict[GrantId, GrantRecord] = field(default_factory=dict)
    fails: dict[tuple[CheckpointStep, int], CheckpointFailed] = field(default_factory=dict)
    breaks: bool = False
    """True if a step that fails leaves the process in state FAILED."""
    lacks: str = ""
    still: str = ""
    host_bytes: int = 256 * GIB
    cgroup_bytes: int | None = None
    others_bytes: int = 0
    """On the card, of no grant."""
    hostile: bool = False
    """They say that they were charged nothing."""
    acts: int = 0
    killed_at: int | None = None
    after_act: bool = False
    moving: int = 0
    """How often it logs that a requested restore still runs."""
    held_up: asyncio.Event | None = None
    """The driver does nothing before it is set."""

    def __post_init__(self) -> None:
        self.states = dict.fromkeys(self.processes, CheckpointState.RUNNING)
        self.clock = ManualClock()
        share = DeviceShare(GPU, Bytes(48 * GIB), Bytes(CARD), Ppm(600_000))
        self.ledger[G] = GrantRecord(
            G, "job", SharePolicy.HARD, (share,), process(1), 0.0, "boot", GrantState.ACTIVE
        )
        self.start()

    def start(self) -> None:
        """A new daemon: its book is what is durable."""
        nothing = Nanoseconds(1)
        self.book = GrantBook(Rules(nothing, nothing, nothing, "boot"))
        self.book.handle(ev.GpusSeen((GpuCapacity(GPU, 0, "card", Bytes(CARD), Bytes(CARD), 10),)))
        for record in self.ledger.values():
            slots = tuple((SlotIndex(pid), process(pid)) for pid in self.states)
            self.book.handle(ev.Restored(record, True, slots))
        self.journal = Journal(self.clock, 3600.0)
        self.defects: list[BaseException] = []
        self.manager = self.make()

    def make(self, **settings: Any) -> SpillManager:
        return SpillManager(
            CheckpointSettings(**settings),
            self,  # type: ignore[arg-type]  # as much of a keeper as it asks
            Driver(self),
            self,
            self.cards,
            self.cards_now,
            self.journal,
            self.clock,
            self.defects.append,
        )

    def act(self, do: Callable[[], None]) -> None:
        """Counts, and may be the last one: before it was done, or just after."""
        self.acts += 1
        if self.acts == self.killed_at and not self.after_act:
            raise Killed
        do()
        self.check()
        if self.acts == self.killed_at:
            raise Killed

    def check(self) -> None:
        """Whatever may be on the card has room there that is its own."""
        on_card = any(one is not CheckpointState.CHECKPOINTED for one in self.states.values())
        if on_card and self.states:
            assert self.ledger[G].spill is not Spill.SPILLED

    @property
    def record(self) -> GrantRecord:
        return self.ledger[G]

    def used(self) -> int:
        on_card = (CheckpointState.RUNNING, CheckpointState.LOCKED, CheckpointState.FAILED)
        return sum(self.processes[pid] for pid, one in self.states.items() if one in on_card)

    def texts(self) -> list[str]:
        return [one.text for one in self.journal.after(0)]

    # the host

    def total_bytes(self) -> Bytes:
        return Bytes(self.host_bytes)

    def available_bytes(self) -> Bytes:
        return Bytes(self.host_bytes)

    def headroom(self, pid: int) -> tuple[Bytes, str] | None:
        return None if self.cgroup_bytes is None else (Bytes(self.cgroup_bytes), "/sys/fs/cgroup/a")

    def holds_still(self, pid: int) -> str:
        return self.still

    # the card

    def cards(self) -> Sequence[GpuReading]:
        found = tuple(
            ProcessReading(pid, Bytes(self.processes[pid]))
            for pid, one in self.states.items()
            if one is not CheckpointState.CHECKPOINTED
        )
        used = Bytes(self.used() + self.others_bytes)
        return [GpuReading(GPU, 0, "card", Bytes(CARD), used, processes=found)]

    async def cards_now(self) -> Sequence[GpuReading]:
        return self.cards()

    # a keeper

    def apply(self, event: ev.Event) -> None:
        for do in self.book.handle(event):
            if isinstance(do, ev.Store):
                self.act(lambda row=do.record: self.ledger.update({row.grant: row}))  # type: ignore[misc]  # bound now

    def grant(self, grant: GrantId | None) -> Held | None:
        return self.book.grants.get(grant) if grant is not None else None

    def live(self) -> Mapping[GrantId, Held]:
        return self.book.grants

    def tenants(self, grant: GrantId) -> Sequence[Any]:
        return [
            SimpleNamespace(handle=SimpleNamespace(process=process(pid))) for pid in self.states
        ]

    def look(self, grant: GrantId, opened: Any) -> None:
        pass

    def opened(self, grant: GrantId | None) -> Any:
        tenants = {
            SlotIndex(pid): one for pid, one in zip(self.states, self.tenants(G), strict=True)
        }

        def charged(slot: SlotIndex, device: int) -> int:
            return 0 if self.hostile else self.processes[slot]

        return SimpleNamespace(tenants=tenants, account=SimpleNamespace(charged=charged))

    def die(self, pid: int) -> None:
        del self.states[pid]


class Driver:
    def __init__(self, world: World) -> None:
        self._world = world

    async def missing(self) -> str:
        return self._world.lacks

    async def states(self, processes: Sequence[Process]) -> list[CheckpointState]:
        if self._world.moving:
            self._world.moving -= 1
            return [CheckpointState.MOVING for _ in processes]
        return [self._world.states.get(one.pid, CheckpointState.GONE) for one in processes]

    async def take(self, step: CheckpointStep, processes: Sequence[Process], each_s: float) -> None:
        world = self._world
        for one in processes:
            if world.held_up is not None:
                await world.held_up.wait()
            if one.pid not in world.states:
                continue
            after = NEXT.get((world.states[one.pid], step))
            assert after is not None, f"{step} of one that is {world.states[one.pid]}"
            failure = world.fails.get((step, one.pid))
            if failure is not None:
                if world.breaks:
                    world.states[one.pid] = CheckpointState.FAILED
                raise failure
            world.act(lambda pid=one.pid, after=after: world.states.update({pid: after}))  # type: ignore[misc]  # bound now


def paused(world: World) -> None:
    world.ledger[G] = replace(world.record, paused=True)
    world.start()
