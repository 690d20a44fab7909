"""State of the eBPF child: watched processes, attached probes, and the counters that it reads.

The file is longer than most, because attached probes follow from watched processes and the other
way round, and both end with the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from nodeagent.adapters.ebpf import audit, cgroups
from nodeagent.adapters.ebpf import records as rec
from nodeagent.adapters.ebpf.kernel import Kernel, Ring, close_all
from nodeagent.adapters.ebpf.libraries import (
    Kind,
    Libraries,
    Mapping,
    distinct,
    file_id,
    foreign,
)
from nodeagent.adapters.ebpf.loaders.programs import pid_namespace
from nodeagent.adapters.ebpf.pins import BPFFS
from nodeagent.adapters.host import elf
from nodeagent.adapters.host.library_identity import library_identity
from nodeagent.adapters.processes.cgroups import pod_in, unified_path, unified_root
from nodeagent.adapters.processes.identity import read_process
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.telemetry import (
    Actor,
    AuditWindow,
    DeviceOpened,
    FileId,
    ForeignLibrary,
    KernelEvent,
    LaunchCounts,
    LaunchReading,
    ProbeAltered,
    ProcessExec,
    ProcessExit,
    ProcessLaunches,
)
from nodeagent.units import NS_PER_S, Nanoseconds

FIRST_LOOK_S: Final = 0.1
LONGEST_LOOK_S: Final = 60.0
"""Seconds. A process is examined soon after it did something, then at doubling intervals, because
reading its mappings takes up to a millisecond."""
TICK_S: Final = 0.1
KEEP_ENDED_S: Final = 60.0
MAX_ENDED: Final = 4096
MAX_CHECKED: Final = 64
"""Maximum processes whose code is compared in one window."""


@dataclass(frozen=True, slots=True)
class Options:
    devices: str
    """GPU devices, in the format of records.gpu_devices()."""
    audit_interval_s: float
    """Seconds between audits; 0 switches them off."""
    audit_window_s: float
    audit_budget_ratio: float
    loader: str
    """auto, prebuilt or bcc: see loaders/choose.py."""
    prebuilt: str
    """Path of the prebuilt programs, which may not exist."""
    status_s: float = 1.0
    pins: str = "sluice"
    """Directory in bpffs for refusals; another daemon on the host has another one."""
    owner: str = ""
    """The daemon's runtime directory."""


@dataclass(slots=True)
class _Watched:
    """State of one watched process."""

    due_s: float
    wait_s: float = FIRST_LOOK_S
    starttime_ticks: int | None = None
    mappings: list[Mapping] = field(default_factory=list)
    reported: set[tuple[object, ...]] = field(default_factory=set)
    """Findings that were reported about it, each of them once."""


_Counts: TypeAlias = dict[int, tuple[int, int]]
"""Launches into the driver, and kernels and graphs through our library, by process."""


@dataclass(slots=True)
class _Shim:
    attached: audit.Attached
    users: int = 0


class Watcher:
    def __init__(
        self,
        kernel: Kernel,
        fds: dict[str, int],
        options: Options,
        report: Callable[[KernelEvent], None],
    ) -> None:
        self._kernel = kernel
        self._fds = fds
        self._options = options
        self._report = report
        self._ring: Ring | None = None
        self._links: list[int] = []
        self._root = unified_root()
        self._refusals: cgroups.Refusals | None = None
        self._libraries = Libraries()
        self._known: frozenset[FileId] = frozenset()
        self._former: frozenset[LibraryIdentity] = frozenset()
        self._asked: frozenset[int] = frozenset()
        self._watched: dict[int, _Watched] = {}
        self._shims: dict[FileId, _Shim] = {}
        self._traced: dict[int, list[FileId]] = {}
        self._attaching = asyncio.Lock()
        self._ended: list[tuple[float, LaunchCounts]] = []
        self._devices: set[tuple[int, int]] = set()
        self.problems: list[str] = []
        self.costs: audit.Costs | None = None
        """Costs of probes; None if this kernel has no uprobes."""

    # --- start and end ---

    async def start(self) -> None:
        """Attach the permanent programs. A failure is recorded as a problem and does not affect the
        others."""
        self._ring = Ring(self._kernel, self._fds["records"], self._record)
        asyncio.get_running_loop().add_reader(self._ring.fileno(), self._ring.consume)
        self.find_devices()
        if pid_namespace() is not None:
            self.problems.append(
                "processes in other PID namespaces are not detected: the daemon is not in the"
                " host's"
            )
        self._attach("exec", self._kernel.attach_raw_tracepoint, "see_exec", "sched_process_exec")
        self._attach("exit", self._kernel.attach_raw_tracepoint, "see_exit", "sched_process_exit")
        if self._root is None:
            self.problems.append("cgroup2 is not mounted: opens of GPU devices are not watched")
        else:
            self._attach("opens", self._kernel.attach_cgroup, "see_open", str(self._root))
            self._refusals = cgroups.Refusals(
                self._kernel,
                self._fds["deny_open"],
                self._root,
                BPFFS / self._options.pins,
                self._options.owner,
            )
            try:
                self._refusals.start()
            except OSError as error:
                self._refusals.problem = str(error)
            if self._refusals.problem:
                self.problems.append(f"refusals end when eBPF ends: {self._refusals.problem}")
        try:
            self.costs = await asyncio.to_thread(
                audit.calibrate, self._kernel, self._fds["see_nothing"]
            )
        except (OSError, KeyError) as error:
            self.problems.append(f"launches cannot be watched: uprobes failed: {error}")

    def find_devices(self) -> None:
        """Find the GPU devices. Called repeatedly, because the driver may be loaded later."""
        proc_devices = Path("/proc/devices").read_text(encoding="ascii", errors="replace")
        for device in rec.gpu_devices(self._options.devices, proc_devices):
            if device not in self._devices:
                self._devices.add(device)
                key = rec.DEVICE_KEY.pack(*device)
                self._kernel.update(self._fds["gpu_devices"], key, b"\1")

    def _attach(
        self, what: str, attach: Callable[[int, str], int], program: str, where: str
    ) -> None:
        try:
            self._links.append(attach(self._fds[program], where))
        except OSError as error:
            self.problems.append(f"{what} cannot be watched: {error}")

    def close(self) -> None:
        if self._ring is not None:
            asyncio.get_running_loop().remove_reader(self._ring.fileno())
            self._ring.close()
        close_all(self._links)
        for shim in self._shims.values():
            shim.attached.close()

    def lost(self) -> int:
        total = 0
        for kind in (rec.DROPPED_RECORDS, rec.DROPPED_ROWS):
            value = self._kernel.lookup(self._fds["dropped"], rec.PID.pack(kind), rec.WORD.size)
            total += rec.WORD.unpack(value)[0] if value else 0
        return total

    # --- records of the kernel ---

    def _record(self, data: bytes) -> None:
        try:
            record = rec.read_record(data)
        except struct.error:
            return
        at = Nanoseconds(record.at_ns)
        actor = self._actor(record)
        if record.kind == rec.RECORD_OPEN:
            if _is_ours(record.pid):
                return
            self._report(
                DeviceOpened(at, actor, record.major, record.minor, record.access, record.denied)
            )
            self._look_soon(record.pid)
        elif record.kind == rec.RECORD_EXEC:
            self._report(ProcessExec(at, actor))
            # It executes another program, so earlier findings do not apply.
            self._watched.pop(record.pid, None)
            self._look_soon(record.pid)
        elif record.kind == rec.RECORD_EXIT:
            self._retire(record.pid)
            self._watched.pop(record.pid, None)
            self._traced.pop(record.pid, None)
            self._report(ProcessExit(at, actor))

    def _actor(self, record: rec.Record) -> Actor:
        return self._describe(record.pid, record.uid, record.command, record.cgroup_id)

    def _describe(self, pid: int, uid: int, command: str, cgroup: int) -> Actor:
        text = cgroups.cgroup_text(pid)
        if not text and self._root is not None:  # It has ended, but its cgroup may still exist.
            text = f"0::{cgroups.path_of(self._root, cgroup)}"
        return Actor(
            pid=pid,
            uid=uid,
            command=command,
            cgroup_id=cgroup,
            starttime_ticks=_starttime(pid),
            cgroup=unified_path(text),
            pod_uid=pod_in(text) or "",
        )

    def _someone(self, pid: int) -> Actor:
        """A process with its current identity."""
        command, uid, number = "", 0, 0
        with contextlib.suppress(OSError):
            uid = read_process(pid).uid
            command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
        if self._root is not None:
            path = unified_path(cgroups.cgroup_text(pid))
            number = cgroups.cgroup_id(self._root, path) or 0
        return self._describe(pid, uid, command.strip(), number)

    # --- watched processes ---

    def watch(self, pids: Collection[int]) -> None:
        for pid in self._asked - frozenset(pids):
            self._watched.pop(pid, None)
            self._kernel.delete(self._fds["watched_pids"], rec.PID.pack(pid))
        self._asked = frozenset(pids)
        for pid in self._asked:
            if pid not in self._watched:
                self._look_soon(pid)

    def _look_soon(self, pid: int) -> None:
        watched = self._watched.setdefault(pid, _Watched(0.0))
        watched.due_s = time.monotonic() + FIRST_LOOK_S
        watched.wait_s = FIRST_LOOK_S
        self._remember(pid)

    def _remember(self, pid: int) -> None:
        """Record them in the kernel's own sets, from which old entries are evicted."""
        self._kernel.update(self._fds["watched_pids"], rec.PID.pack(pid), b"\1")
        if self._root is not None:
            path = unified_path(cgroups.cgroup_text(pid))
            number = cgroups.cgroup_id(self._root, path)
            if number is not None:
                self._kernel.update(self._fds["watched_cgroups"], rec.WORD.pack(number), b"\1")

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        self._former = frozenset(former)
        found = (file_id(path) for path in paths)
        self._known = frozenset(one for one in found if one is not None)
        self._libraries.forget()

    async def look_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            for pid, watched in list(self._watched.items()):
                if watched.due_s > now_s:
                    continue
                watched.wait_s = min(LONGEST_LOOK_S, watched.wait_s * 2)
                watched.due_s = now_s + watched.wait_s
                self._look(pid, watched)
            self._ended = [one for one in self._ended if one[0] > now_s]

    def _look(self, pid: int, watched: _Watched) -> None:
        start = _starttime(pid)
        if start is None or watched.starttime_ticks not in (None, start):
            self._watched.pop(pid, None)
            return
        watched.starttime_ticks = start
        self._remember(pid)
        watched.mappings = self._libraries.mapped(pid)
        if not self._known:
            return
        for mapping in foreign(watched.mappings, self._known):
            if (mapping.file,) in watched.reported:
                continue
            if library_identity(mapping.through) in self._former:
                continue
            watched.reported.add((mapping.file,))
            kind = "driver" if mapping.kind is Kind.DRIVER else "interposer"
            self._report(
                ForeignLibrary(_now(), self._someone(pid), mapping.file, mapping.path, kind)
            )

    def _mappings(self) -> list[Mapping]:
        return [mapping for watched in self._watched.values() for mapping in watched.mappings]

    # --- launches ---

    def launches(self) -> LaunchReading:
        fd = self._fds["launch_rows"]
        found = []
        for key in set(self._kernel.keys(fd, rec.LAUNCH_KEY.size)):
            pid, device = rec.LAUNCH_KEY.unpack(key)
            start = _starttime(pid)
            if start is None:
                self._retire(pid)
            elif (counts := self._counts(pid, device, start)) is not None:
                found.append(counts)
        return LaunchReading(_now(), (*found, *(counts for _, counts in self._ended)))

    def _counts(
        self, pid: int, device: int, start: int | None, ended: bool = False
    ) -> LaunchCounts | None:
        key = rec.LAUNCH_KEY.pack(pid, device)
        value = self._kernel.lookup(self._fds["launch_rows"], key, rec.LAUNCH_ROW.size)
        if value is None:
            return None
        row = rec.read_row(value)
        return LaunchCounts(
            pid=pid,
            starttime_ticks=start,
            grant_tag=row.grant,
            device=device,
            launches=row.launches,
            copies=row.copies,
            cost_ns=row.cost_ns,
            waited_ns=row.waited_ns,
            first_ns=Nanoseconds(row.first_ns),
            last_ns=Nanoseconds(row.last_ns),
            wait_histogram=row.wait,
            gap_histogram=row.gap,
            ended=ended,
        )

    def _retire(self, pid: int) -> None:
        """Remove the rows of a process that ended from the kernel's map."""
        watched = self._watched.get(pid)
        start = watched.starttime_ticks if watched else None
        for device in range(16):
            counts = self._counts(pid, device, start, ended=True)
            if counts is None:
                continue
            self._kernel.delete(self._fds["launch_rows"], rec.LAUNCH_KEY.pack(pid, device))
            if len(self._ended) < MAX_ENDED:
                self._ended.append((time.monotonic() + KEEP_ENDED_S, counts))

    async def trace(self, pid: int, on: bool) -> None:
        """Start or stop tracing a process. Raises ProcessLookupError, OSError."""
        if not on:
            for file in self._traced.get(pid, [])[-1:]:
                self._traced[pid].pop()
                await self._release(file)
            return
        mappings = [m for m in self._libraries.mapped(pid) if m.kind is Kind.INTERPOSER]
        if _starttime(pid) is None:
            raise ProcessLookupError(f"process {pid} has ended")
        if not mappings:
            raise ProcessLookupError(
                f"process {pid} does not use our library: it is not in a grant, or has not loaded"
                " CUDA"
            )
        self._look_soon(pid)
        await self._acquire(mappings[0])
        self._traced.setdefault(pid, []).append(mappings[0].file)

    async def _acquire(self, mapping: Mapping) -> None:
        """Attach probes to a library, or count one more user of them. Raises OSError."""
        async with self._attaching:
            shim = self._shims.get(mapping.file)
            if shim is None:
                try:
                    attached = await asyncio.to_thread(
                        audit.attach_shim, self._kernel, self._fds, mapping.through
                    )
                except (elf.NotElf, audit.WrongProbes) as error:
                    raise OSError(str(error)) from error
                shim = self._shims[mapping.file] = _Shim(attached)
            shim.users += 1

    async def _release(self, file: FileId) -> None:
        async with self._attaching:
            shim = self._shims.get(file)
            if shim is None:
                return
            shim.users -= 1
            if shim.users <= 0:
                del self._shims[file]
                await asyncio.to_thread(shim.attached.close)

    # --- refusing ---

    def refused(self) -> list[str]:
        return self._refusals.paths() if self._refusals is not None else []

    def deny(self, cgroup: str, on: bool) -> None:
        """Refuse GPUs to a cgroup, or allow them. Raises OSError, ValueError."""
        if self._refusals is None:
            raise OSError("cgroup2 is not mounted")
        if on:
            self._refusals.refuse(cgroup)
        else:
            self._refusals.allow(cgroup)

    # --- audit ---

    async def audit_loop(self) -> None:
        if not self._options.audit_interval_s or self.costs is None:
            await asyncio.Event().wait()
        while True:
            began_s = time.monotonic()
            drivers = distinct(m for m in self._mappings() if m.kind is Kind.DRIVER)
            for file, mappings in drivers.items():
                with contextlib.suppress(OSError, elf.NotElf):  # The last user has ended.
                    await self._audit(file, mappings)
            spent_s = time.monotonic() - began_s
            await asyncio.sleep(max(0.1, self._options.audit_interval_s - spent_s))

    async def _audit(self, file: FileId, mappings: list[Mapping]) -> None:
        """Audit one driver library for one window. Raises OSError, elf.NotElf."""
        options = self._options
        assert self.costs is not None
        budget = audit.Budget(
            options.audit_interval_s,
            options.audit_window_s,
            options.audit_budget_ratio,
            self.costs,
        )
        users = {mapping.pid for mapping in mappings}
        shims = [
            group[0]
            for group in distinct(
                m for m in self._mappings() if m.kind is Kind.INTERPOSER and m.pid in users
            ).values()
        ]
        held: list[Mapping] = []
        driver: audit.Attached | None = None
        through = mappings[0].through
        try:
            for shim in shims:
                with contextlib.suppress(OSError):
                    await self._acquire(shim)
                    held.append(shim)
            driver = await asyncio.to_thread(audit.attach_driver, self._kernel, self._fds, through)
            began_ns = _now()
            before = self._seen()
            after, passed_s, cost_ratio = before, 0.0, 0.0
            while not budget.ends(passed_s, cost_ratio):
                await asyncio.sleep(budget.slice_s)
                after = self._seen()
                passed_s = (_now() - began_ns) / NS_PER_S
                cost_ratio = _cost_ratio(budget, passed_s, before, after)
            length_ns = Nanoseconds(_now() - began_ns)
            self._check_code(file, mappings, driver, through)
            for shim in held:
                probes = self._shims[shim.file].attached
                same = [m for m in self._mappings() if m.file == shim.file]
                self._check_code(shim.file, same, probes, shim.through)
        finally:
            if driver is not None:
                await asyncio.to_thread(driver.close)
            for shim in held:
                await self._release(shim.file)
            for key in set(self._kernel.keys(self._fds["driver_launches"], rec.PID.size)):
                self._kernel.delete(self._fds["driver_launches"], key)
        found = []
        for pid in sorted(users | {p for p in after if after[p][0] != before.get(p, (0, 0))[0]}):
            now, then = after.get(pid, (0, 0)), before.get(pid, (0, 0))
            found.append(ProcessLaunches(pid, _starttime(pid), now[0] - then[0], now[1] - then[1]))
        self._report(
            AuditWindow(
                began_ns,
                length_ns,
                file,
                mappings[0].path,
                tuple(found),
                cost_ratio,
            )
        )

    def _seen(self) -> _Counts:
        driver: dict[int, int] = {}
        for key in set(self._kernel.keys(self._fds["driver_launches"], rec.PID.size)):
            value = self._kernel.lookup(self._fds["driver_launches"], key, rec.WORD.size)
            if value is not None:
                driver[rec.PID.unpack(key)[0]] = rec.WORD.unpack(value)[0]
        shim: dict[int, int] = {}
        for key in set(self._kernel.keys(self._fds["launch_rows"], rec.LAUNCH_KEY.size)):
            value = self._kernel.lookup(self._fds["launch_rows"], key, rec.LAUNCH_ROW.size)
            if value is not None:
                pid = rec.LAUNCH_KEY.unpack(key)[0]
                shim[pid] = shim.get(pid, 0) + rec.read_row(value).launches
        return {pid: (driver.get(pid, 0), shim.get(pid, 0)) for pid in driver.keys() | shim.keys()}

    def _check_code(
        self, file: FileId, mappings: list[Mapping], attached: audit.Attached, through: str
    ) -> None:
        """Check in every process that the code under the attached probes is the kernel's
        breakpoint."""
        try:
            originals = audit.originals(through, attached.symbols)
        except OSError:
            return
        for mapping in mappings[:MAX_CHECKED]:
            watched = self._watched.get(mapping.pid)
            for offset, original in originals.items():
                found = audit.code_at(mapping, offset)
                kind = audit.altered(original, found) if found else None
                if kind is None or found is None or watched is None:
                    continue
                if (file, offset, kind) in watched.reported:
                    continue
                watched.reported.add((file, offset, kind))
                self._report(
                    ProbeAltered(
                        _now(),
                        self._someone(mapping.pid),
                        file,
                        mapping.path,
                        attached.symbols[offset],
                        kind,
                        found.hex(),
                    )
                )


def _cost_ratio(budget: audit.Budget, passed_s: float, before: _Counts, after: _Counts) -> float:
    """Cost so far, of the process that has lost most."""
    worst = 0.0
    for pid, (driver, shim) in after.items():
        driver_before, shim_before = before.get(pid, (0, 0))
        lost = budget.cost_ratio(passed_s, driver - driver_before, shim - shim_before)
        worst = max(worst, lost)
    return worst


def _starttime(pid: int) -> int | None:
    """Start time of a process; None if it does not exist. A zombie exists until it is reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _is_ours(pid: int) -> bool:
    """True for the daemon, and for a child of it with the same interpreter, such as the reader of
    NVML."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            parent = int(stat.read().rpartition(b")")[2].split()[1])
        related = os.getppid() in (pid, parent)
        return related and os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe")
    except (OSError, IndexError, ValueError):
        return False


def _now() -> Nanoseconds:
    return Nanoseconds(time.monotonic_ns())
