"""Registration sockets: one SOCK_SEQPACKET listener per grant, one exchange per tenant process
(proto/register.h).

The caller's identity comes from the kernel (SO_PEERCRED, SO_PEERPIDFD); the message has only the
protocol version and the slot that a process claimed by itself while the daemon was down. A caller
that sends nothing is dropped after a timeout. A flood is dropped without an answer, and its senders
claim slots by themselves as if the daemon were down.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.adapters.host.descriptor_room import is_short
from nodeagent.adapters.processes.cgroups import pod_of
from nodeagent.adapters.processes.pidfd import PidfdHandle, peer_of
from nodeagent.adapters.region import layout as c
from nodeagent.ports.clock import Clock
from nodeagent.ports.processes import Process
from nodeagent.ports.registration import RegisterAnswer, Registrar
from nodeagent.shell.rate_limited_log import RateLimitedLog
from nodeagent.units import ANY_POD, MAX_SLOTS, NS_PER_S, GrantId, SlotIndex

log = logging.getLogger(__name__)

DEADLINE_S: Final = 1.0
"""Seconds; four times what a tenant waits, after which it does not read the answer."""
BURST: Final = 2 * MAX_SLOTS
"""Maximum registrations at once: every process that a grant can hold, twice."""
RATE_PER_S: Final = 100.0
MAX_SILENT: Final = 64
"""Connected callers per grant that may not have sent anything yet."""
PAUSE_S: Final = 0.2
"""Seconds until accepting is tried again after file descriptors ran out."""
_REQUEST_BYTES: Final = ctypes.sizeof(c.RegisterRequest)


@dataclass(slots=True)
class _Listener:
    grant: GrantId
    uid: int
    pod_uid: str
    """If not empty, any user of this pod may register."""
    listener: socket.socket
    tokens: float = BURST
    filled_ns: int = 0
    silent: set[socket.socket] = field(default_factory=set)
    registered: set[socket.socket] = field(default_factory=set)


class SeqpacketListener:
    """The Doorman on Unix sockets, in the running event loop."""

    def __init__(self, registrar: Registrar, clock: Clock) -> None:
        self._registrar = registrar
        self._clock = clock
        self._listeners: dict[GrantId, _Listener] = {}
        self.dropped_total = 0
        self._short = RateLimitedLog(log)

    def open(self, grant: GrantId, directory: str, uid: int, pod_uid: str = "") -> None:
        path = Path(directory) / c.SOCKET_FILE
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            _bind(listener, path)
            # The directory above a container's grant is closed to all other users of the host.
            os.chmod(path, 0o666 if pod_uid else 0o600)
            if os.geteuid() == 0:
                os.chown(path, uid, -1)
            listener.listen(MAX_SLOTS)
        except BaseException:
            listener.close()
            raise
        listening = _Listener(grant, uid, pod_uid, listener, filled_ns=self._clock.monotonic_ns())
        self._listeners[grant] = listening
        self._listen(listening)

    def _listen(self, listening: _Listener) -> None:
        if self._listeners.get(listening.grant) is listening:
            asyncio.get_running_loop().add_reader(listening.listener, self._accept, listening)

    def shut(self, grant: GrantId) -> None:
        listening = self._listeners.pop(grant, None)
        if listening is None:
            return
        loop = asyncio.get_running_loop()
        for connection in (listening.listener, *listening.silent, *listening.registered):
            loop.remove_reader(connection)
            connection.close()

    def close_listeners(self) -> None:
        """Close the sockets after the event loop has ended; tenants keep running."""
        for listening in self._listeners.values():
            for connection in (listening.listener, *listening.silent, *listening.registered):
                connection.close()
        self._listeners.clear()

    def _accept(self, listening: _Listener) -> None:
        for _ in range(MAX_SLOTS):  # Let other tasks of the event loop run.
            try:
                connection, _ = listening.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # File descriptors ran out; the callers wait in the backlog.
                self._short.warning("grant %s: accept: %s", listening.grant, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening.listener)
                loop.call_later(PAUSE_S, self._listen, listening)
                return
            connection.setblocking(False)
            if len(listening.silent) >= MAX_SILENT or not self._admit(listening):
                self.dropped_total += 1
                connection.close()
                continue
            listening.silent.add(connection)
            self._receive(listening, connection)

    def _admit(self, listening: _Listener) -> bool:
        now_ns = self._clock.monotonic_ns()
        refill = (now_ns - listening.filled_ns) / NS_PER_S * RATE_PER_S
        listening.tokens, listening.filled_ns = min(BURST, listening.tokens + refill), now_ns
        if listening.tokens < 1:
            return False
        listening.tokens -= 1
        return True

    def _receive(self, listening: _Listener, connection: socket.socket) -> None:
        """Read the request, which usually has arrived already; otherwise wait up to the timeout."""
        loop = asyncio.get_running_loop()
        if self._try_request(listening, connection):
            return
        late = loop.call_later(DEADLINE_S, self._drop, listening, connection)

        def ready() -> None:
            if self._try_request(listening, connection):
                late.cancel()

        loop.add_reader(connection, ready)

    def _try_request(self, listening: _Listener, connection: socket.socket) -> bool:
        try:
            message = connection.recv(_REQUEST_BYTES + 1)
        except BlockingIOError:
            return False
        except OSError:
            message = b""
        asyncio.get_running_loop().remove_reader(connection)
        if message:
            self._answer(listening, connection, message)
        else:
            self._drop(listening, connection)
        return True

    def _answer(self, listening: _Listener, connection: socket.socket, message: bytes) -> None:
        answer, handle = self._decide(listening, connection, message)
        reply = c.RegisterReply(
            magic=c.REGISTER_MAGIC,
            version=c.REGISTER_VERSION,
            error=answer.error,
            slot=answer.slot,
            generation=answer.generation,
        )
        listening.silent.discard(connection)
        try:
            connection.send(bytes(reply), socket.MSG_NOSIGNAL)
        except OSError:  # It ended, or waited too long.
            connection.close()
            if handle is not None and not answer.error:
                self._registrar.reply_unread(listening.grant, answer.slot, answer.generation)
            return
        if answer.error or handle is None:
            connection.close()
            return
        listening.registered.add(connection)

        def closed() -> None:
            # Only one message is read, so that a tenant which sends many does not keep the
            # daemon busy.
            asyncio.get_running_loop().remove_reader(connection)
            gone = self._registrar.hung_up
            try:
                if connection.recv(1):
                    return
            except ConnectionResetError:  # The kernel's word for a reply that was not read.
                gone = self._registrar.reply_unread
            except OSError:
                pass
            listening.registered.discard(connection)
            connection.close()
            gone(listening.grant, answer.slot, answer.generation)

        asyncio.get_running_loop().add_reader(connection, closed)

    def _decide(
        self, listening: _Listener, connection: socket.socket, message: bytes
    ) -> tuple[RegisterAnswer, PidfdHandle | None]:
        if len(message) != _REQUEST_BYTES:
            return RegisterAnswer(errno.EPROTO), None
        request = c.RegisterRequest.from_buffer_copy(message)
        if (request.magic, request.version, request.region_major) != (
            c.REGISTER_MAGIC,
            c.REGISTER_VERSION,
            c.REGION_MAJOR,
        ):
            return RegisterAnswer(errno.EPROTO), None
        try:
            handle = peer_of(connection)
        except OSError as error:
            return RegisterAnswer(errno.EAGAIN if is_short(error) else errno.ESRCH), None
        if not _may_enter(listening, handle.process):
            handle.close()
            return RegisterAnswer(errno.EPERM), None
        claimed = request.claimed_slot - 1 if 0 < request.claimed_slot <= MAX_SLOTS else None
        answer = self._registrar.register(
            listening.grant, handle, SlotIndex(claimed) if claimed is not None else None
        )
        return answer, handle

    def _drop(self, listening: _Listener, connection: socket.socket) -> None:
        if connection in listening.silent:
            listening.silent.discard(connection)
            asyncio.get_running_loop().remove_reader(connection)
            connection.close()


def _may_enter(listening: _Listener, process: Process) -> bool:
    """True if the caller may register. A container's socket is reachable from inside the container
    and for root on the host; a process of another pod can only have been given it."""
    if not listening.pod_uid:
        return process.uid in (listening.uid, 0)
    return listening.pod_uid == ANY_POD or pod_of(process.pid) in (None, listening.pod_uid)


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind through the directory's descriptor, because sun_path has room for 107 bytes only."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
