"""The state directory with flipped bits, cut files and zeroed pages: the daemon's stores open whatever stands there, what
runs is kept as it is, and what was put aside is said.

The directory is what a `kill -9` leaves (rows still in the write-ahead log) and what an orderly end leaves, in turns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent import native
from nodeagent.adapters.containers import library_store
from nodeagent.adapters.host.clock import SystemClock
from nodeagent.adapters.kubelet.allocations import SqliteAllocations
from nodeagent.adapters.ledger.instance_lock import InstanceLock
from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.processes.identity import read_process
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region.store import RegionLibrary, TmpfsRegions
from nodeagent.core.grants import events as ev
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.native import NativeFiles
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.kubelet import Allocation, AllocationState
from nodeagent.ports.ledger import GrantRecord
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.queue import Fence
from nodeagent.ports.watch import AuditRow, Hold
from nodeagent.settings.daemon import Settings
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.node import rules_of
from nodeagent.units import GIB, GpuUuid, GrantId, SharePolicy
from tests.kit.damage import damage

BOOT = "6f1ed002-ab5a-4a3c-9f0e-1b2c3d4e5f60"
CARD = GpuUuid("GPU-11111111-2222-3333-4444-555555555555")
HOLD = Hold(
    0, 5.0, "freeze", "7:70", "unregistered_gpu_user", "", "contain", "{}", "g1", 7, 70, 1000, "/x",
    "", "", "", "", "", 0, 0, ((7, 70), (8, 80)),
)  # fmt: skip
ALLOCATIONS = [
    Allocation(f"nonce-{number}", "nvidia.com/gpu", frozenset({f"GPU-{number}"}), BOOT, 1.5)
    for number in range(12)
]


class NoDoor:
    def open(self, grant: str, directory: str, uid: int, pod_uid: str = "") -> None: ...

    def shut(self, grant: str) -> None: ...


def keeper_of(state: Path, runtime: Path, fatal: Callable[[BaseException], None]) -> Keeper:
    library = RegionLibrary(native.locate().region_library)
    return Keeper(
        rules_of(Settings(), BOOT),
        SystemClock(),
        SqliteLedger(state / "ledger.sqlite", BOOT),
        TmpfsRegions(runtime / "grants", library, BOOT, mounts=None),
        SystemProcesses(),
        lambda registrar: NoDoor(),
        fatal,
    )


def no_defect(error: BaseException) -> None:
    raise error


@dataclass
class World:
    """A state directory in both shapes, and the regions that go on beside it."""

    crashed: Path
    closed: Path
    runtime: Path
    grants: dict[GrantId, GrantRecord]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    if native.locate().missing():
        pytest.skip("not built: `make build`")
    root = tmp_path_factory.mktemp("damaged")
    live, runtime = root / "live", root / "rt"
    live.mkdir()
    runtime.mkdir()

    async def fill() -> dict[GrantId, GrantRecord]:
        lock = InstanceLock(live)
        keeper = keeper_of(live, runtime, no_defect)
        ledger: Any = keeper._ledger
        card = GpuCapacity(CARD, 0, "H200", 140 * GIB, 140 * GIB, 10)
        keeper.apply(ev.GpusSeen((card,)))
        me = read_process(os.getpid())
        for number in range(4):
            grant = GrantId(f"00000000-0000-4000-8000-{number:012}")
            ask = GrantAsk(
                1, MemoryAsk(amount_bytes=(number + 1) * GIB), 100_000, SharePolicy.HARD, f"job-{number}"
            )  # fmt: skip
            owner = SystemProcesses().find(me.pid, me.starttime_ticks)
            assert keeper.ask_now(ask, owner, grant=grant) == grant
        keeper.apply(ev.Released(GrantId("00000000-0000-4000-8000-000000000003")))  # one that ended
        for number in range(40):
            ledger.store_hold(replace(HOLD, pid=number))
            ledger.audit(AuditRow(1.0, "rule", "step", False, "observe", "s", number, 1, "g", "{}"))
            ledger.store_driver_file(LibraryIdentity(1, number, 3, 4, 5, 0))
        ledger.store_fence(Fence("c", 1, 2, 3))
        allocations = SqliteAllocations(live / "allocations.sqlite")
        await allocations.commit(ALLOCATIONS)
        await allocations.commit([replace(ALLOCATIONS[0], state=AllocationState.RELEASED)])
        store = live / "libraries"
        files = root / "files" / "preload"
        files.mkdir(parents=True)
        (files / "libsluice.so").write_bytes(b"\x7fELF of no use")
        library_store.libraries(NativeFiles(root / "files"), {}, store)
        shutil.copytree(live, root / "crashed")
        held = {grant: one.record for grant, one in keeper.live().items()}
        keeper.close()
        ledger.close()
        allocations.close()
        lock.close()
        shutil.copytree(live, root / "closed")
        return held

    return World(root / "crashed", root / "closed", runtime, asyncio.run(fill()))


def start(state: Path, world: World) -> dict[GrantId, GrantRecord]:
    """Start the daemon's stores from its state, and write to each of them. Returns the running
    grants."""

    async def run() -> dict[GrantId, GrantRecord]:
        InstanceLock(state).close()
        keeper = keeper_of(state, world.runtime, no_defect)
        ledger: Any = keeper._ledger
        allocations = SqliteAllocations(state / "allocations.sqlite")
        try:
            keeper.restore()
            ledger.holds()
            ledger.audit_rows()
            ledger.load_queue()
            ledger.driver_files()
            ledger.store_hold(HOLD)
            ledger.store_fence(Fence())
            assert {one.nonce: one for one in allocations.load()}.items() <= known.items()
            await allocations.commit([replace(ALLOCATIONS[1], created_unix_s=1.5)])
            library_store.libraries(NativeFiles(state / "nothing"), {}, state / "libraries")
            return {grant: one.record for grant, one in keeper.live().items()}
        finally:
            keeper.close()
            ledger.close()
            allocations.close()

    known = {one.nonce: one for one in ALLOCATIONS}
    return asyncio.run(run())


def check(world: World, case: Path, seeds: range, caplog: pytest.LogCaptureFixture) -> int:
    put_aside = 0
    for seed in seeds:
        dice = random.Random(seed)
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(dice.choice([world.crashed, world.closed]), case)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        told = [damage(path, dice) for path in dice.sample(files, dice.choice([1, 1, 2]))]
        caplog.clear()
        try:
            found = start(case, world)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {told}: {error!r}") from error
        assert found == world.grants, (seed, told)
        aside = [
            path for path in case.glob("*.corrupt-*") if path.name[-4:] not in ("-wal", "-shm")
        ]
        put_aside += len(aside)
        for path in aside:
            assert any(str(path) in record.getMessage() for record in caplog.records), (seed, told)
    return put_aside


def test_every_start_on_a_damaged_directory_keeps_what_runs(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    assert check(world, tmp_path / "case", range(120), caplog) > 10


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_thousands_of_them(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert check(world, tmp_path / "case", range(1000, 6000), caplog) > 500


def test_a_letter_of_the_schema_that_is_none_puts_the_file_aside(tmp_path: Path) -> None:
    """sqlite3 says UnicodeDecodeError, which is no DatabaseError, at the first statement."""
    path = tmp_path / "ledger.sqlite"
    SqliteLedger(path, BOOT).close()
    data = path.read_bytes()
    assert b"CREATE TABLE grants" in data
    path.write_bytes(data.replace(b"CREATE TABLE grants", b"CREATE TABLE gr\xffnts"))
    ledger = SqliteLedger(path, BOOT)
    assert ledger.was_rebuilt
    ledger.close()


def test_a_flipped_bit_of_the_version_is_no_later_version(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    SqliteLedger(path, BOOT).close()
    for byte in range(60, 64):
        for bit in range(8):
            data = bytearray(path.read_bytes())
            data[byte] ^= 1 << bit
            case = tmp_path / f"case-{byte}-{bit}"
            case.mkdir()
            (case / "ledger.sqlite").write_bytes(bytes(data))
            ledger = SqliteLedger(case / "ledger.sqlite", BOOT)
            assert ledger.was_rebuilt
            ledger.close()


def test_a_limit_with_a_flipped_bit_is_not_believed(world: World, tmp_path: Path) -> None:
    case = tmp_path / "case"
    shutil.copytree(world.closed, case)
    path = case / "ledger.sqlite"
    wanted = str(2 * GIB).encode()
    data = path.read_bytes()
    assert wanted in data
    path.write_bytes(data.replace(wanted, str(9 * GIB)[:10].encode()))
    assert start(case, world) == world.grants


def test_damaged_files_are_kept_but_not_without_end(tmp_path: Path, monkeypatch: Any) -> None:
    clock = SimpleNamespace(now=0)

    def stamp(_format: str, _when: object) -> str:
        clock.now += 1
        return f"{clock.now:06}"

    # Not of the module of that name itself: logging reads the time from it, too.
    own = SimpleNamespace(strftime=stamp, gmtime=lambda: None)
    monkeypatch.setattr("nodeagent.adapters.ledger.sqlite_file.time", own)
    for number in range(20):
        (tmp_path / "ledger.sqlite").write_bytes(bytes([number + 1]) * 8192)
        SqliteLedger(tmp_path / "ledger.sqlite", BOOT).close()
    kept = sorted(path.name for path in tmp_path.glob("*.corrupt-*") if "-wal" not in path.name)
    assert kept == [f"ledger.sqlite.corrupt-{number:06}" for number in range(13, 21)]
