"""Processes by pidfd, an identity that no other process can take over.

A PID is reused as soon as its process is reaped; CVEs in polkit came from checks by PID alone. If
only a PID is known (SO_PEERCRED on kernels before 6.5, a ledger row), the start time is compared
after the pidfd is open.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping

from nodeagent.adapters.host.descriptor_room import is_short
from nodeagent.adapters.processes.identity import LARGEST_PID, read_process
from nodeagent.adapters.processes.region_users import users_of
from nodeagent.ports.processes import Process, ProcessHandle
from nodeagent.units import GrantId, SlotIndex

SO_PEERPIDFD = 77
"""Linux 6.5; the socket module has it since Python 3.13."""
_UCRED = struct.Struct("3i")


class PidfdHandle:
    """A ProcessHandle; watches for the exit through the running event loop."""

    def __init__(self, process: Process, pidfd: int) -> None:
        self._process = process
        self._fd = pidfd
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def process(self) -> Process:
        return self._process

    def alive(self) -> bool:
        """True while the process runs. A zombie counts as ended, because its memory and its GPU
        work are released."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def on_exit(self, call: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()

        def exited() -> None:
            assert self._loop is not None
            self._loop.remove_reader(self._fd)
            self._loop = None
            call()

        self._loop.add_reader(self._fd, exited)

    def signal(self, number: int) -> bool:
        try:
            signal.pidfd_send_signal(self._fd, number)
        except OSError:  # It ended, or is another user's.
            return False
        return True

    def duplicate(self) -> ProcessHandle:
        return PidfdHandle(self._process, os.dup(self._fd))

    def close(self) -> None:
        if self._fd >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._fd)
                self._loop = None
            os.close(self._fd)
            self._fd = -1


class SystemProcesses:
    def find(self, pid: int, starttime_ticks: int) -> ProcessHandle | None:
        if not 0 < pid <= LARGEST_PID:  # The PID may come from a tenant's memory.
            return None
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            if is_short(error):  # The error says nothing about the process.
                raise
            return None
        try:
            process = read_process(pid)
        except OSError as error:
            if is_short(error):
                os.close(fd)
                raise
            process = None
        if process is None or process.starttime_ticks != starttime_ticks:
            os.close(fd)
            return None
        handle = PidfdHandle(process, fd)
        if not handle.alive():
            handle.close()
            return None
        return handle

    def find_claimants(
        self, claims: Mapping[SlotIndex, tuple[int, int]]
    ) -> dict[SlotIndex, ProcessHandle]:
        found: dict[SlotIndex, ProcessHandle] = {}
        elsewhere: dict[tuple[int, int], SlotIndex] = {}
        for slot, (ns_pid, starttime) in claims.items():
            handle = self.find(ns_pid, starttime)
            if handle is not None:
                found[slot] = handle
            elif 0 < ns_pid <= LARGEST_PID:
                elsewhere[ns_pid, starttime] = slot
        if not elsewhere:
            return found
        for name in os.listdir("/proc"):
            # This is rare: a tenant in a PID namespace of its own, or a forged PID.
            if not name.isdecimal():
                continue
            try:
                process = read_process(int(name))
            except OSError:
                continue
            claimed = elsewhere.pop((process.ns_pid, process.starttime_ticks), None)
            if claimed is not None:
                handle = self.find(process.pid, process.starttime_ticks)
                if handle is not None:
                    found[claimed] = handle
        return found

    def users_of(self, grant: GrantId, uid: int, pod_uid: str) -> list[ProcessHandle]:
        found: list[ProcessHandle] = []
        for pid in users_of(grant, pod_uid):
            try:
                process = read_process(pid)
            except OSError:
                continue
            handle = self.find(pid, process.starttime_ticks)
            if handle is None:
                continue
            if pod_uid or process.uid in (uid, 0):
                found.append(handle)
            else:
                handle.close()
        return found

    def maps_file(self, pid: int, device: int, inode: int) -> bool | None:
        try:
            with open(f"/proc/{pid}/maps", "rb") as maps:
                for line in maps:
                    fields = line.split(maxsplit=5)
                    major, _, minor = fields[3].partition(b":")
                    if int(fields[4]) != inode:
                        continue
                    if os.makedev(int(major, 16), int(minor, 16)) == device:
                        return True
        except PermissionError:
            return None
        except (OSError, ValueError, IndexError):
            return False
        return False

    def image_of(self, pid: int) -> int:
        """Address of the process's stack, which is random and changes with each program that it
        executes."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                return int(stat.read().rpartition(b")")[2].split()[25])
        except (OSError, ValueError, IndexError):
            return 0


def peer_of(connection: socket.socket) -> PidfdHandle:
    """The process that connected, as identified by the kernel. Raises OSError if it has ended."""
    size = _UCRED.size
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, gid = _UCRED.unpack(raw)
    if pid <= 0:
        raise ProcessLookupError("the peer is in a PID namespace that is not visible here")
    try:
        fd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        os.set_inheritable(fd, False)
    except OSError:
        # Before Linux 6.5 the peer may exit and its PID be reused between the two calls. The
        # window is microseconds, and the credentials above are still the peer's.
        fd = os.pidfd_open(pid)
    try:
        process = read_process(pid)
        handle = PidfdHandle(Process(pid, process.starttime_ticks, uid, gid, process.ns_pid), fd)
        if not handle.alive():  # What was read may be another process's.
            raise ProcessLookupError(f"process {pid} has ended")
    except BaseException:
        os.close(fd)
        raise
    return handle


def peer_pidfd_supported() -> bool:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with a, b:
        try:
            os.close(a.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return False
    return True
