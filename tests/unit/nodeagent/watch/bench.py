"""The watch with a world of its own around it: no process, no cgroup, no kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from nodeagent.adapters.ebpf.watch import NoKernelWatch
from nodeagent.ports.gpus import NodeReading, ProcessReading
from nodeagent.ports.ledger import ContainerRef, GrantRecord, LedgerFull
from nodeagent.ports.processes import LibraryIdentity, Process
from nodeagent.ports.watch import AuditRow, Hold, MappedLibrary, ProcessFacts
from nodeagent.settings.daemon import DetectionSettings
from nodeagent.shell.journal import Journal
from nodeagent.shell.watch.containment import Containment
from nodeagent.shell.watch.watch import Watch
from nodeagent.units import GIB, Bytes, GrantId, Nanoseconds, SharePolicy
from tests.kit.fakes.ebpf import FakeKernelWatch
from tests.kit.fakes.nvml import gpu_reading

POD = "1b4e28ba-2fa1-11d2-883f-000000000001"
CGROUP = f"/kubepods/pod{POD}/c1"


@dataclass
class World:
    """Processes, cgroups and a ledger that remember what was done to them."""

    facts: dict[int, ProcessFacts] = field(default_factory=dict)
    libraries: dict[int, tuple[MappedLibrary, ...]] = field(default_factory=dict)
    identities: dict[str, LibraryIdentity] = field(default_factory=dict)
    done: list[tuple[object, ...]] = field(default_factory=list)
    rows: list[AuditRow] = field(default_factory=list)
    full: bool = False
    rows_held: dict[int, Hold] = field(default_factory=dict)
    """The ledger's acts in force."""
    inodes: dict[str, int] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    pins: set[int] = field(default_factory=set)
    now_s: float = 100.0
    grants: dict[GrantId, Any] = field(default_factory=dict)
    open: dict[GrantId, Any] = field(default_factory=dict)
    short: bool = False
    managed_beyond: bool = False

    def add(self, pid: int, cgroup: str = "/", pod: str = "", uid: int = 1000, program: str = "/x") -> None:  # fmt: skip
        self.facts[pid] = ProcessFacts(pid, pid * 10, uid, program, cgroup, pod, ((1, 1),))

    # clock, ledger, inspector, processes, restrainer, keeper

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(int(self.now_s * 1e9))

    def unix_s(self) -> float:
        return self.now_s

    def audit(self, row: AuditRow) -> None:
        if self.full:
            raise LedgerFull("disk full")
        self.rows.append(row)

    def audit_rows(self, rule: str = "") -> list[AuditRow]:
        return self.rows

    def holds(self) -> list[Hold]:
        return list(self.rows_held.values())

    def store_hold(self, hold: Hold) -> Hold:
        if self.full:
            raise LedgerFull("disk full")
        made = replace(hold, number=hold.number or len(self.rows) + 1)
        self.rows_held[made.number] = made
        return made

    def drop_hold(self, number: int) -> None:
        del self.rows_held[number]

    # targets

    def inode(self, path: str) -> int:
        return self.inodes.setdefault(path, 1000 + len(self.inodes)) if path else 0

    def cgroup_ids(self, cgroup: str, freezer: str) -> tuple[int, int]:
        return self.inode(cgroup), self.inode(freezer)

    def is_frozen(self, cgroup: str, freezer: str) -> bool:
        return cgroup in self.frozen

    def is_stopped(self, pid: int) -> bool:
        return pid in self.stopped

    def refused(self) -> frozenset[int]:
        return frozenset(self.pins)

    def allow(self, cgroup_id: int) -> None:
        self.pins.discard(cgroup_id)

    # grants

    def grant(self, grant: GrantId | None) -> Any:
        return self.grants.get(grant) if grant is not None else None

    def live(self) -> dict[GrantId, Any]:
        return self.grants

    def opened(self, grant: GrantId | None) -> Any:
        return self.open.get(grant) if grant is not None else None

    def opens(self) -> dict[GrantId, Any]:
        return self.open

    def tenants(self, grant: GrantId) -> Any:
        return self.open[grant].tenants.values() if grant in self.open else ()

    def processes_of(self, grant: GrantId) -> list[Process]:
        return [one.process for one in self.tenants(grant)]

    def facts_of(self, pid: int) -> ProcessFacts | None:
        return self.facts.get(pid)

    def driver_libraries(self, pid: int) -> tuple[MappedLibrary, ...]:
        return self.libraries.get(pid, ())

    def file_id(self, path: str) -> tuple[int, int] | None:
        return (1, 1) if path == "/real/libcuda.so.1" else None

    def identity(self, path: str) -> LibraryIdentity | None:
        return self.identities.get(path)

    def find(self, pid: int, starttime_ticks: int) -> Any:
        facts = self.facts.get(pid)
        if facts is None or facts.starttime_ticks != starttime_ticks:
            return None

        def signal(number: int) -> bool:
            self.done.append(("signal", pid, int(number)))
            (self.stopped.add if number == 19 else self.stopped.discard)(pid)
            return True

        return SimpleNamespace(signal=signal, close=lambda: None)

    def freeze(self, cgroup: str, freezer: str, frozen: bool) -> None:
        self.done.append(("freeze", cgroup, frozen))
        (self.frozen.add if frozen else self.frozen.discard)(cgroup)

    def kill(self, cgroup: str, freezer: str) -> None:
        self.done.append(("kill", cgroup))

    def apply(self, event: Any) -> None:
        self.done.append((type(event).__name__, event.grant, event.paused))
        self.grants[event.grant].record = replace(
            self.grants[event.grant].record, paused=event.paused
        )

    def signal(self, grant: GrantId, number: int) -> int:
        self.done.append(("signal all", grant, int(number)))
        return 1


@dataclass
class Bench:
    world: World
    watch: Watch
    journal: Journal
    kernel: FakeKernelWatch
    placers: list[Callable[[GrantId, str], str]]
    former: set[LibraryIdentity]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.journal.after(0)]

    async def looks(self, reading: NodeReading, seconds: float) -> None:
        """A reading each second of the world's clock."""
        for _ in range(int(seconds)):
            self.world.now_s += 1
            self.watch.look(reading)
            await asyncio.sleep(0)


def daemon(world: Any, ebpf: bool = True, **settings: Any) -> Bench:
    """Another one over the same world is what comes after the first was killed. Its eBPF child is
    not started."""
    inspector = SimpleNamespace(
        facts=world.facts_of,
        driver_libraries=world.driver_libraries,
        file_id=world.file_id,
        identity=world.identity,
    )
    made = DetectionSettings(**settings)
    journal = Journal(world, made.repeat_s)
    kernel = FakeKernelWatch()
    placers: list[Callable[[GrantId, str], str]] = []
    former: set[LibraryIdentity] = set()
    containment = Containment(
        world, world, world, world, world, journal, world, kernel, ebpf, placers
    )
    watch = Watch(
        made,
        world,
        world,
        inspector,
        containment,
        journal,
        world,
        kernel if ebpf else NoKernelWatch(),
        lambda grant: ("", ""),
        lambda: ["/real/libcuda.so.1"],
        lambda: former,
    )
    return Bench(world, watch, journal, kernel, placers, former)


def on_gpu(*pids: int) -> NodeReading:
    processes = tuple(ProcessReading(pid, Bytes(GIB), 0.5) for pid in pids)
    return NodeReading((replace(gpu_reading(0), processes=processes),))


def held(grant: str, pod: str = "") -> tuple[GrantId, Any]:
    container = ContainerRef(pod, "c", (), "team", "p") if pod else None
    record = GrantRecord(
        GrantId(grant), grant, SharePolicy.HARD, (), Process(4000, 1, 1000, 1000), 0.0, "b",
        container=container,
    )  # fmt: skip
    return record.grant, SimpleNamespace(record=record, slots={}, request=None)
