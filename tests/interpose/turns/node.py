"""A node in virtual time: the real interposer, simulated driver and planner, on a clock that moves only while all of them
wait (stub/virtual_time.c).

No load of the machine changes a figure, so it can be a floor without a margin for noise. The daemon's part is done by the
test itself: it looks and plans whenever the daemon would, with the daemon's own classes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nodeagent.adapters.region.store import RegionLibrary, TmpfsRegion, TmpfsRegions
from nodeagent.core.grants.usage import GrantAccount
from nodeagent.ports.ledger import DeviceShare, GrantRecord, GrantState
from nodeagent.ports.processes import Process
from nodeagent.ports.regions import DeviceLimits, DeviceTurn
from nodeagent.settings.daemon import PlannerSettings, ThrottleSettings
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.turns import Turns
from nodeagent.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    Bytes,
    GpuUuid,
    GrantId,
    Nanoseconds,
    Ppm,
    SharePolicy,
    SlotIndex,
)
from tests.interpose import regions
from tests.interpose.simulated import UUID
from tests.kit.places import TENANT

CARD = "h200-141gb"
GIB = 1 << 30
FIRST = SlotIndex(0)
SLEEPS, GONE = 2, 4
"""States of a member in virtual_time.c."""
START_S = 30.0


class Stuck(Exception):
    """A program of the node ended without giving the turn back."""


@dataclass(frozen=True)
class _Slot:
    generation: int = 1


class _Waking:
    """A region whose waiters wait in virtual time."""

    def __init__(self, region: TmpfsRegion, library: ctypes.CDLL) -> None:
        self._region = region
        self._library = library
        self.heartbeat = region.heartbeat
        self.read_usage = region.read_usage
        self.close = region.close

    def set_turn(self, device: int, turn: DeviceTurn, wake: bool) -> None:
        self._region.set_turn(device, turn, wake)
        if wake:
            self._library.virtual_wake()


@dataclass
class _Open:
    """The parts of nodeagent.shell.grants.reading.Open that the planning loop uses."""

    region: _Waking
    account: GrantAccount
    tenants: dict[SlotIndex, _Slot] = field(default_factory=dict)


@dataclass(frozen=True)
class _Held:
    record: GrantRecord


class _Grants:
    """The parts of nodeagent.shell.grants.keeper.Keeper that the planning loop uses."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self.open: dict[GrantId, _Open] = {}
        self.held: dict[GrantId, _Held] = {}

    def opens(self) -> dict[GrantId, _Open]:
        return self.open

    def grant(self, grant: GrantId) -> _Held:
        return self.held[grant]

    def look(self, grant: GrantId, opened: _Open) -> None:
        image = opened.region.read_usage(list(opened.tenants))
        generations = {slot: one.generation for slot, one in opened.tenants.items()}
        found = opened.account.observe(image, generations, self._node.monotonic_ns())
        assert not found, (grant, found)


@dataclass
class Program:
    process: subprocess.Popen[str]
    member: int
    _result: dict[str, Any] | None = None

    def result(self) -> dict[str, Any]:
        """Its last line, with all lines before as `reports`."""
        if self._result is None:
            out, errors = self.process.communicate(timeout=START_S)
            assert self.process.returncode == 0, (self.process.returncode, out, errors)
            lines = [json.loads(line) for line in out.splitlines()]
            self._result = {**lines[-1], "reports": lines[:-1]}
        return self._result


class VirtualNode:
    """One GPU. Programs start at once, in the order in which they are added, and the clock stands until `run`."""

    def __init__(self, directory: Path, switch_us: int) -> None:
        self._directory = directory
        self._environment = {
            "SLUICE_SIM_DIR": str(directory / "sim"),
            "SLUICE_SIM_GPUS": CARD,
            "SLUICE_SIM_SWITCH_US": str(switch_us),
            "VIRTUAL_TIME": str(directory / "time"),
            "LD_PRELOAD": str(_library()),
        }
        (directory / "sim").mkdir(parents=True)
        self._gpu = _gpu(directory / "other")
        self._time = ctypes.CDLL(str(_library()))
        self._time.virtual_now.restype = ctypes.c_uint64
        assert self._time.virtual_begin(os.fsencode(directory / "time")) == 0
        self._store = TmpfsRegions(
            directory / "grants",
            RegionLibrary(regions.BUILD / "libsluice_region.so"),
            str(uuid.UUID(bytes=regions.boot_id())),
            None,
        )
        self._grants = _Grants(self)
        self._programs: list[Program] = []
        self.settings = PlannerSettings()
        self.turns = Turns(self.settings, cast(Keeper, self._grants), self)

    # --- the daemon's clock ---

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(int(self._time.virtual_now()))

    def unix_s(self) -> float:
        return self.monotonic_ns() / NS_PER_S

    # --- programs ---

    def bare(self, *arguments: str) -> Program:
        return self._start({"LD_LIBRARY_PATH": str(regions.SIM.parent)}, arguments)

    def grant(
        self, percent: float, *arguments: str, policy: str = "elastic", priority: int = 0
    ) -> Program:
        """A program in a grant of its own."""
        name = GrantId(str(uuid.UUID(int=len(self._grants.open) + 1)))
        share = DeviceShare(self._gpu, Bytes(4 * GIB), Bytes(141 * GIB), Ppm(int(percent * 10_000)))
        record = GrantRecord(
            name,
            name,
            SharePolicy(policy),
            (share,),
            Process(0, 0, os.geteuid(), os.getegid()),
            0.0,
            "boot",
            GrantState.ACTIVE,
            driver_path=str(regions.SIM),
            priority=priority,
        )
        region = self._store.create(record, (_limits(record),))
        assert isinstance(region, TmpfsRegion)
        region.set_population(1, 1)
        region.heartbeat(self.monotonic_ns())
        self._grants.held[name] = _Held(record)
        self._grants.open[name] = _Open(
            _Waking(region, self._time), GrantAccount((141 * GIB,)), {FIRST: _Slot()}
        )
        return self._start(
            {"LD_LIBRARY_PATH": str(regions.SHIM.parent), "SLUICE_GRANT_DIR": region.directory},
            arguments,
        )

    def _start(self, environment: dict[str, str], arguments: Sequence[str]) -> Program:
        member = len(self._programs) + 1
        process = subprocess.Popen(
            [TENANT, *arguments],
            env={
                **os.environ,
                **self._environment,
                **environment,
                "VIRTUAL_MEMBER": str(member),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        program = Program(process, member)
        self._programs.append(program)
        deadline = time.monotonic() + START_S
        while self._time.virtual_state(member) != SLEEPS:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return program

    def run(self, for_s: float) -> None:
        """Let the programs run, and plan as often as the daemon does, until all have ended or that time is over."""
        until_ns = self.monotonic_ns() + int(for_s * NS_PER_S)
        while (now_ns := self.monotonic_ns()) < until_ns and self._working():
            next_ns = now_ns + int(self.turns.tick() * NS_PER_S)
            if not self._time.virtual_sleep_until(ctypes.c_uint64(min(next_ns, until_ns))):
                raise Stuck([one.process.poll() for one in self._programs])

    def _working(self) -> bool:
        return any(self._time.virtual_state(one.member) != GONE for one in self._programs)

    def close(self) -> None:
        for one in self._programs:
            one.process.kill()
            one.process.wait()
        for opened in self._grants.open.values():
            opened.region.close()


def _library() -> Path:
    return regions.MESON / "libvirtual_time.so"


def _gpu(directory: Path) -> GpuUuid:
    """UUID of the first simulated card, which depends on its number and model only."""
    directory.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", UUID, regions.SIM],
        env={**os.environ, "SLUICE_SIM_DIR": str(directory), "SLUICE_SIM_GPUS": CARD},
        capture_output=True,
        text=True,
        check=True,
    )
    return GpuUuid(f"GPU-{uuid.UUID(done.stdout.strip())}")


def _limits(record: GrantRecord) -> DeviceLimits:
    """As nodeagent.core.grants.book.Book.limits."""
    throttle = ThrottleSettings()
    (share,) = record.devices
    return DeviceLimits(
        gpu=share.gpu,
        memory_limit_bytes=share.memory_bytes,
        physical_bytes=share.physical_bytes,
        burst_ns=Nanoseconds(int(throttle.burst_ms * NS_PER_MS)),
        inflight_ns=Nanoseconds(int(throttle.inflight_ms * NS_PER_MS)),
        chunk_ns=Nanoseconds(int(throttle.chunk_us * NS_PER_US)),
        share_ppm=share.share_ppm if record.policy is SharePolicy.HARD else Ppm(0),
    )


@contextlib.contextmanager
def node(directory: Path, switch_us: int) -> Iterator[VirtualNode]:
    made = VirtualNode(directory, switch_us)
    try:
        yield made
    finally:
        made.close()
