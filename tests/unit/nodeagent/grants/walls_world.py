"""A driver with memory limits by cgroup, cgroups, and a ledger, that outlive the desk which uses them; any act of theirs
may be the one at which the daemon is killed."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nodeagent.core.grants.states import Held
from nodeagent.ports.driver.walls import (
    NoCgroup,
    Place,
    WallOrder,
    WallReading,
    WallRow,
    WallsUnavailable,
)
from nodeagent.ports.ledger import ContainerRef, DeviceShare, GrantRecord, GrantState
from nodeagent.ports.processes import Process
from nodeagent.settings.daemon import WallSettings
from nodeagent.shell.grants.walls import WallManager
from nodeagent.shell.journal import Journal
from nodeagent.units import MIB, Bytes, GpuUuid, GrantId, Ppm, SharePolicy
from tests.kit.clock import ManualClock

GPU, OTHER = GpuUuid("GPU-0"), GpuUuid("GPU-1")
POD = "11111111-1111-1111-1111-111111111111"
PODS = "/cg/kubepods"
GIB = 1 << 30
HEADROOM = 64 * MIB


class Killed(Exception):
    """The daemon ends here."""


def record(
    grant: str = "g1",
    memory: int = 8 * GIB,
    gpus: Sequence[GpuUuid] = (GPU,),
    pod: str = POD,
    request: int | None = None,
) -> GrantRecord:
    asked = None if request is None else Bytes(request)
    return GrantRecord(
        GrantId(grant),
        grant,
        SharePolicy.HARD,
        tuple(DeviceShare(gpu, Bytes(memory), Bytes(80 * GIB), Ppm(1), asked) for gpu in gpus),
        Process(0, 0, 0, 0),
        0.0,
        "boot",
        GrantState.ACTIVE,
        container=ContainerRef(pod, "main", ()) if pod else None,
    )


@dataclass
class World:
    """Implements DriverWalls, WallPlaces, WallRows and what the desk asks of grants."""

    kernel: bool = True
    """The kernel's book, with a hierarchy; else the driver's flat one."""
    without: Mapping[GpuUuid, str] = field(default_factory=dict)
    book: dict[tuple[GpuUuid, str], tuple[int, int | None]] = field(default_factory=dict)
    cgroups: set[str] = field(default_factory=lambda: {"/cg", PODS})
    of_pid: dict[int, Place] = field(default_factory=dict)
    rows: dict[tuple[GrantId, GpuUuid], WallRow] = field(default_factory=dict)
    grants: dict[GrantId, Held] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    hangs: bool = False
    without_cgroups: str = ""
    """Why this host has none of the unified hierarchy."""
    acts: int = 0
    killed_at: int | None = None
    after_act: bool = False
    on_ended: list[Callable[[GrantId], None]] = field(default_factory=list)
    on_changed: list[Callable[[GrantId], None]] = field(default_factory=list)
    on_registered: list[Callable[[], None]] = field(default_factory=list)

    def act(self, do: Callable[[], None]) -> None:
        """Counts, and may be the last one: before it was done, or just after."""
        self.acts += 1
        if self.acts == self.killed_at and not self.after_act:
            raise Killed
        do()
        if self.acts == self.killed_at:
            raise Killed

    # the driver

    async def missing(self, gpus: Sequence[GpuUuid]) -> Mapping[GpuUuid, str]:
        self.answer()
        return {gpu: self.without[gpu] for gpu in gpus if gpu in self.without}

    def answer(self) -> None:
        if self.hangs:
            raise WallsUnavailable("NVML did not answer")

    async def set(self, orders: Sequence[WallOrder]) -> None:
        self.answer()
        for order in orders:
            if order.cgroup not in self.cgroups:
                raise WallsUnavailable(f"{order.cgroup}: not found")
            self.act(lambda order=order: self.write(order))  # type: ignore[misc]  # bound now

    def write(self, order: WallOrder) -> None:
        soft, _hard = self.book.get((order.gpu, order.cgroup), (0, None))
        self.put(order.gpu, order.cgroup, order.soft_bytes, order.hard_bytes)
        above = posixpath.dirname(order.cgroup)
        while self.kernel and above != "/cg":
            around, hard = self.book.get((order.gpu, above), (0, None))
            self.put(order.gpu, above, max(0, around + order.soft_bytes - soft), hard)
            above = posixpath.dirname(above)

    def put(self, gpu: GpuUuid, cgroup: str, soft: int, hard: int | None) -> None:
        if soft == 0 and hard is None:
            self.book.pop((gpu, cgroup), None)
        else:
            self.book[gpu, cgroup] = (soft, hard)

    async def read(self, gpu: GpuUuid, cgroups: Sequence[str]) -> list[WallReading | None]:
        self.answer()
        return [self.reading(gpu, one) for one in cgroups]

    def reading(self, gpu: GpuUuid, cgroup: str) -> WallReading | None:
        if cgroup not in self.cgroups:
            return None
        soft, hard = self.book.get((gpu, cgroup), (0, None))
        return WallReading(Bytes(soft), None if hard is None else Bytes(hard), Bytes(0))

    # cgroups; `missing` is the driver's, so the places are a view of their own

    def places(self) -> Places:
        return Places(self)

    def container(self, pid: int, name: str, pod: str = POD) -> str:
        path = f"{PODS}/pod{pod}/{name}"
        self.cgroups |= {posixpath.dirname(path), path}
        self.of_pid[pid] = Place(path, pod)
        return path

    def remove(self, *cgroups: str) -> None:
        """Remove cgroups as a runtime does; the kernel forgets their limits."""
        for cgroup in cgroups:
            self.cgroups.discard(cgroup)
            for key in [key for key in self.book if key[1] == cgroup]:
                del self.book[key]

    # the ledger

    def wall_rows(self) -> list[WallRow]:
        return list(self.rows.values())

    def store_wall(self, row: WallRow) -> None:
        self.act(lambda: self.rows.update({(row.grant, row.gpu): row}))

    def drop_wall(self, row: WallRow) -> None:
        self.act(lambda: self.rows.pop((row.grant, row.gpu), None) and None)

    # grants

    def give(self, given: GrantRecord) -> None:
        self.grants[given.grant] = Held(given, region=True)

    def end(self, grant: str) -> None:
        del self.grants[GrantId(grant)]
        for call in self.on_ended:
            call(GrantId(grant))

    def resize(self, grant: str, memory: int) -> None:
        held = self.grants[GrantId(grant)]
        devices = tuple(replace(one, memory_bytes=Bytes(memory)) for one in held.record.devices)
        held.record = replace(held.record, devices=devices)
        for call in self.on_changed:
            call(GrantId(grant))

    def grant(self, grant: GrantId | None) -> Held | None:
        return self.grants.get(grant) if grant is not None else None

    def live(self) -> Mapping[GrantId, Held]:
        return self.grants

    def tenants(self, grant: GrantId) -> Sequence[Any]:
        return ()


class Places:
    def __init__(self, world: World) -> None:
        self._world = world

    def missing(self) -> str:
        return self._world.without_cgroups

    def of_container(self, pid: int) -> Place:
        found = self._world.of_pid.get(pid)
        if found is None:
            raise NoCgroup(f"process {pid} is in no cgroup of a container's own: /")
        return found

    def make(self, grant: GrantId, pid: int) -> str:
        self._world.cgroups |= {"/cg/sluice", f"/cg/sluice/{grant}"}
        return f"/cg/sluice/{grant}"

    def exists(self, cgroup: str) -> bool:
        return cgroup in self._world.cgroups

    def around(self, cgroup: str) -> str:
        above = posixpath.dirname(cgroup)
        while above != "/cg" and above not in self._world.cgroups:
            above = posixpath.dirname(above)
        return "" if above == "/cg" else above

    def inside(self, cgroup: str) -> list[str]:
        return [one for one in self._world.cgroups if posixpath.dirname(one) == cgroup]

    def remove(self, cgroup: str) -> bool:
        if cgroup in self._world.busy:
            return False
        self._world.remove(cgroup)
        return True

    def made(self) -> Mapping[GrantId, str]:
        made = [one for one in self._world.cgroups if posixpath.dirname(one) == "/cg/sluice"]
        return {GrantId(posixpath.basename(one)): one for one in made}


@dataclass
class Run:
    """One daemon's time."""

    world: World
    manager: WallManager
    journal: Journal
    fatal: list[BaseException]

    async def settled(self) -> None:
        """Nothing is under way any more."""
        while self.manager._background.busy:
            await self.manager._background.wait(30.0)
            await asyncio.sleep(0)

    def told(self) -> list[str]:
        return [event.text for event in self.journal._events]


async def daemon(
    world: World,
    act: Callable[[Run], Awaitable[None]],
    enabled: str = "auto",
    run_cgroups: bool = False,
) -> Run:
    """Starts, does `act`, and ends; a kill in the middle ends it there."""
    world.on_ended, world.on_changed, world.on_registered = [], [], []
    fatal: list[BaseException] = []
    journal = Journal(ManualClock(), 600.0)
    settings = WallSettings(enabled=enabled, run_cgroups=run_cgroups)
    manager = WallManager(
        settings, world, world, world.places(), world, journal, lambda: [GPU, OTHER], fatal.append
    )
    run = Run(world, manager, journal, fatal)
    try:
        await manager.start()
        await run.settled()
        if not fatal:
            await act(run)
            await run.settled()
    except Killed as killed:
        fatal.append(killed)
    finally:
        await manager.close()
    return run
