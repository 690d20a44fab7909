"""Events of the kernel about GPU use, and the port to the kernel watch (eBPF).

Everything here was observed by the kernel (eBPF) or read from /proc by the daemon, unless a field
says that a tenant wrote it. An adapter runs the programs in a child process; without the child the
port raises `KernelWatchUnavailable` and the daemon continues without it. See
docs/node/telemetry.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from nodeagent.ports.processes import LibraryIdentity
from nodeagent.units import Nanoseconds

HISTOGRAM_BUCKETS: Final = 32
"""Bucket i counts values of 2^i up to 2^(i+1) - 1 ns; the first also counts 0, the last all
above."""


class WatchState(StrEnum):
    OFF = "off"
    """Switched off in the configuration."""
    STARTING = "starting"
    """The programs are being loaded: tenths of a second, or seconds if bcc compiles them."""
    RUNNING = "running"
    DOWN = "down"
    """The programs cannot run here, or the child ended; it is restarted with growing pauses."""


@dataclass(frozen=True, slots=True)
class WatchStatus:
    state: WatchState
    reason: str = ""
    """The reason why it is down, or what does not work although it runs."""
    remedy: str = ""
    """Steps that the operator can take."""
    loader: str = ""
    """prebuilt or bcc."""
    instead: str = ""
    """The reason why the prebuilt programs were not loaded, if those were to be tried first."""
    pid: int | None = None
    """Pid of the child."""
    restarts_total: int = 0
    trap_ns: int | None = None
    """Cost of a probe at the driver's code on this machine, per launch; None: no probes."""
    nop_ns: int | None = None
    """Cost of our own probe while it is attached, per launch."""
    lost_total: int = 0
    """Records that the kernel or the child had to drop."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process as it was when the kernel observed it."""

    pid: int
    """Process id in the daemon's pid namespace."""
    uid: int
    command: str
    """Its 15-byte name, which it chooses itself: for people, never for a decision."""
    cgroup_id: int
    """The kernel's id (inode) of its cgroup in the unified hierarchy."""
    starttime_ticks: int | None = None
    """Start time as in /proc/PID/stat, read right after; None if it was gone by then."""
    cgroup: str = ""
    """Path in the unified hierarchy, read right after; empty: it was gone by then."""
    pod_uid: str = ""
    """UID of the pod to which its cgroup belongs, if it has one."""


@dataclass(frozen=True, slots=True)
class DeviceOpened:
    """A process opened (or created) a node of a GPU device, by any system call, io_uring included.
    A descriptor that was inherited or passed through a socket is not observed."""

    at_ns: Nanoseconds
    """CLOCK_MONOTONIC, as in all records here."""
    actor: Actor
    major: int
    minor: int
    access: str
    """Letters out of r, w, m (mknod)."""
    denied: bool = False
    """True if deny_opens() refused it."""


@dataclass(frozen=True, slots=True)
class ProcessExec:
    """A watched process, or one in a watched cgroup, executed another program."""

    at_ns: Nanoseconds
    actor: Actor


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A watched process, or one that had opened a GPU device, ended."""

    at_ns: Nanoseconds
    actor: Actor


@dataclass(frozen=True, slots=True)
class FileId:
    """Identity of one file, whichever names it has."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class ForeignLibrary:
    """A process has a CUDA driver library mapped that is not among known_libraries(): a copy, or
    one that it brought along. It is recognised by the symbols it exports, not by its name."""

    at_ns: Nanoseconds
    actor: Actor
    file: FileId
    path: str
    """The path under which the process has it mapped."""
    resembles: str
    """driver, or interposer: a copy of ours, or a version of it from before an upgrade."""


@dataclass(frozen=True, slots=True)
class ProbeAltered:
    """The code at a probe differs from what it has to be in this process: something overwrote
    it."""

    at_ns: Nanoseconds
    actor: Actor
    file: FileId
    path: str
    symbol: str
    kind: str
    """restored: attached, but the original instruction is there, so the probe is blind. patched:
    neither the file's instruction nor the kernel's breakpoint."""
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
    """Launches that passed our interposer in the same window; a tenant can forge more of them, but
    never fewer of the driver's."""


@dataclass(frozen=True, slots=True)
class AuditWindow:
    """A short observation of the real driver library: launches that reached it against launches
    that passed our interposer."""

    began_ns: Nanoseconds
    length_ns: Nanoseconds
    file: FileId
    path: str
    processes: tuple[ProcessLaunches, ...]
    cost_ratio: float
    """Estimated part of the busiest process's time since the last window that this one took."""


KernelEvent: TypeAlias = (
    DeviceOpened | ProcessExec | ProcessExit | ForeignLibrary | ProbeAltered | AuditWindow
)


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """Launches of one process on one GPU of its grant since tracing began. They are counted only
    while a client traces them, see KernelWatch.trace()."""

    pid: int
    starttime_ticks: int | None
    grant_tag: int
    """The first eight bytes of the grant's UUID, big-endian. A tenant wrote it: use the pid."""
    device: int
    """Index within the grant. A tenant wrote it."""
    launches: int
    """Kernels and graphs."""
    copies: int
    """Copies and memsets. The interposer's own counter is both together."""
    cost_ns: int
    """GPU time charged. A tenant wrote it."""
    waited_ns: int
    """Time waited at the gate. A tenant wrote it."""
    first_ns: Nanoseconds
    last_ns: Nanoseconds
    """Time of the last launch."""
    wait_histogram: tuple[int, ...]
    """Waits that were not 0; HISTOGRAM_BUCKETS long."""
    gap_histogram: tuple[int, ...]
    """Times between two launches; HISTOGRAM_BUCKETS long."""
    ended: bool = False
    """True if the process is gone; its counts can still be read for a minute."""


@dataclass(frozen=True, slots=True)
class LaunchReading:
    at_ns: Nanoseconds
    counts: tuple[LaunchCounts, ...]


class KernelWatchUnavailable(Exception):
    """eBPF is off, does not work here, or its child is being restarted."""


class KernelWatch(Protocol):
    """eBPF, in a separate process. Calls that change something are remembered and repeated when the
    child is restarted."""

    def status(self) -> WatchStatus: ...
    def subscribe(self, call: Callable[[KernelEvent], None]) -> None:
        """Call `call` in the event loop for each event, in the kernel's order."""

    def watch_processes(self, pids: Collection[int]) -> None:
        """The processes known to use a GPU (registered, or seen by NVML): their programs, libraries
        and exits are reported from now on. Replaces the set given before."""

    def known_libraries(
        self, paths: Collection[str], former: Collection[LibraryIdentity] = ()
    ) -> None:
        """Driver libraries that processes may have mapped: the host's, those kept for containers,
        and ours.

        `former` has those of earlier, which are still mapped although their name is another file's
        now. Replaces the sets given before; the files are examined again.
        """

    async def launches(self) -> LaunchReading:
        """Raises KernelWatchUnavailable."""

    async def trace(self, pid: int, on: bool) -> None:
        """Count the launches of every process that shares this one's copy of our library, until it
        is switched off as many times as on.

        The cost is about 0.5 us per launch on Linux 6.18, several on older kernels. Raises
        KernelWatchUnavailable, or ProcessLookupError if the process is gone or has no library of
        ours.
        """

    async def deny_opens(self, cgroup: str, denied: bool) -> None:
        """Refuse (or allow again) new opens of GPU devices in a cgroup of the unified hierarchy and
        all below it.

        `cgroup` is a path within that hierarchy. Open descriptors stay open. Outlives the daemon.
        Raises KernelWatchUnavailable or OSError.
        """

    def denied(self) -> frozenset[str]:
        """The cgroups whose opens are refused now."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
