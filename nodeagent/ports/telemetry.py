"""What the kernel tells us about who uses the GPUs, and the port it comes through.

Everything here was seen by the kernel (eBPF) or read from /proc by ourselves, unless a field says
that a tenant wrote it. An adapter runs the programs in a child process; with the child gone the
port answers `KernelWatchUnavailable` and the daemon goes on without it. See docs/node/telemetry.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from nodeagent.ports.processes import LibraryIdentity
from nodeagent.units import Nanoseconds

HISTOGRAM_BUCKETS: Final = 32
"""Bucket i counts values of 2^i up to 2^(i+1) - 1 ns, the first also 0, the last all above."""


class WatchState(StrEnum):
    OFF = "off"
    """Switched off in the configuration."""
    STARTING = "starting"
    """The programs are being loaded: tenths of a second, and seconds where bcc compiles them."""
    RUNNING = "running"
    DOWN = "down"
    """Not possible here, or the child ended; it is tried again with growing pauses."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    state: WatchState
    reason: str = ""
    """Why it is down, or what does not work although it runs."""
    remedy: str = ""
    """What the operator can do about it."""
    loader: str = ""
    """prebuilt or bcc."""
    instead: str = ""
    """Why it was not the prebuilt programs that were loaded, where those were to be tried first."""
    pid: int | None = None
    """Of the child."""
    restarts_total: int = 0
    trap_ns: int | None = None
    """What a probe at the driver's code costs on this machine, per launch; None: no probes."""
    nop_ns: int | None = None
    """What our own probe costs while it is attached, per launch."""
    lost_total: int = 0
    """Records the kernel or the child had to drop: what they told of is not known."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process as it was when the kernel saw it do something."""

    pid: int
    """In the daemon's pid namespace."""
    uid: int
    command: str
    """Its 15-byte name, which it chooses itself: for people, never for a decision."""
    cgroup_id: int
    """The kernel's id (inode) of its cgroup in the unified hierarchy."""
    starttime_ticks: int | None = None
    """As in /proc/PID/stat, read right after; None: it was gone by then."""
    cgroup: str = ""
    """Path in the unified hierarchy, read right after; empty: it was gone by then."""
    pod_uid: str = ""
    """Of the pod its cgroup belongs to, where it has one."""


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    """Somebody opened (or made) a node of a GPU device: by any system call, io_uring included. A
    descriptor that was inherited or passed through a socket is not seen."""

    at_ns: Nanoseconds
    """CLOCK_MONOTONIC, as in all records here."""
    actor: Actor
    major: int
    minor: int
    access: str
    """Of the letters r, w, m (mknod)."""
    denied: bool = False
    """By deny_opens()."""


@dataclass(frozen=True, slots=True)
class ProcessExec:
    """A watched process, or one in a watched cgroup, became another program."""

    at_ns: Nanoseconds
    actor: Actor


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A watched process, or one that had opened a GPU device, ended."""

    at_ns: Nanoseconds
    actor: Actor


@dataclass(frozen=True, slots=True)
class FileId:
    """One file for ever, however many names it has."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """A process has a CUDA driver library mapped that is none of known_libraries(): a copy, or one
    it brought along. Told by the symbols it exports, not by its name."""

    at_ns: Nanoseconds
    actor: Actor
    file: FileId
    path: str
    """As the process has it mapped."""
    resembles: str
    """driver, or interposer: a copy of ours, or a version of it from before an upgrade."""


@dataclass(frozen=True, slots=True)
class ProbeAltered:
    """The code at a probe is not what it has to be in this process: somebody wrote over it."""

    at_ns: Nanoseconds
    actor: Actor
    file: FileId
    path: str
    symbol: str
    kind: str
    """restored: attached, yet the original instruction is there, so the probe is blind.
    patched: neither the file's instruction nor the kernel's breakpoint."""
    found: str
    """The first bytes there, hexadecimal."""


@dataclass(frozen=True, slots=True)
class ProcessLaunches:
    """Launches of one process within one audit window."""

    pid: int
    starttime_ticks: int | None
    driver: int
    """Calls that reached a launch entry point of the real driver."""
    shim: int
    """Launches that passed our interposer in the same window; a tenant can forge more of them,
    never fewer of the driver's."""


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """A short look at the real driver library: what went in there against what went by us."""

    began_ns: Nanoseconds
    length_ns: Nanoseconds
    file: FileId
    path: str
    processes: tuple[ProcessLaunches, ...]
    cost_ratio: float
    """Part of the busiest process's time since the last window that this one took, estimated."""


KernelEvent: TypeAlias = (
    DeviceOpened | ProcessExec | ProcessExit | ForeignLibrary | ProbeAltered | AuditWindow
)


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """Launches of one process on one GPU of its grant since they were first watched. They are
    counted while somebody watches them, see KernelWatch.trace()."""

    pid: int
    starttime_ticks: int | None
    grant_tag: int
    """The first eight bytes of the grant's UUID, big-endian. A tenant wrote it: go by the pid."""
    device: int
    """Index within the grant. A tenant wrote it."""
    launches: int
    """Kernels and graphs."""
    copies: int
    """And sets. The interposer's own counter is both together."""
    cost_ns: int
    """GPU time charged. A tenant wrote it."""
    waited_ns: int
    """Waited at the gate. A tenant wrote it."""
    first_ns: Nanoseconds
    last_ns: Nanoseconds
    """Of the last launch."""
    wait_histogram: tuple[int, ...]
    """Of the waits that were not 0; HISTOGRAM_BUCKETS long."""
    gap_histogram: tuple[int, ...]
    """Of the times between two launches; HISTOGRAM_BUCKETS long."""
    ended: bool = False
    """The process is gone; the counts stay to be read for a minute."""


@dataclass(frozen=True, slots=True)
class LaunchReading:
    at_ns: Nanoseconds
    counts: tuple[LaunchCounts, ...]


class KernelWatchUnavailable(Exception):
    """eBPF is off, does not work here, or its child is being started again."""


class KernelWatch(Protocol):
    """eBPF, in a process of its own. Calls that change something are remembered and repeated when
    the child had to be started again."""

    def status(self) -> WatchStatus: ...
    def subscribe(self, call: Callable[[KernelEvent], None]) -> None:
        """Called in the event loop for each event, in the order the kernel saw them."""

    def watch_processes(self, pids: Collection[int]) -> None:
        """The processes known to use a GPU (registered, or seen by NVML): their programs,
        libraries and exits are told from now on. Replaces the set given before."""

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        """Driver libraries that processes may have mapped: the host's, those kept for containers,
        and ours; `former`: those it has had, mapped still though their name is another file's now.
        Replaces the sets given before; the files are looked at anew."""

    async def launches(self) -> LaunchReading:
        """Raises KernelWatchUnavailable."""

    async def trace(self, pid: int, on: bool) -> None:
        """Count the launches of every process that shares this one's copy of our library, until
        it is switched off as many times as on. About 0.5 us per launch on Linux 6.18, several on
        kernels before. Raises KernelWatchUnavailable, ProcessLookupError when the process is gone
        or has no library of ours."""

    async def deny_opens(self, cgroup: str, denied: bool) -> None:
        """Refuse (or allow again) new opens of GPU devices to a cgroup of the unified hierarchy
        and all below it; descriptors already open stay. Outlives the daemon. `cgroup` is a path
        within that hierarchy. Raises KernelWatchUnavailable, OSError."""

    def denied(self) -> frozenset[str]:
        """The cgroups whose opens are refused now."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
