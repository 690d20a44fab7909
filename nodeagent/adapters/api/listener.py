"""The public socket: accepts connections, gets the caller's identity from the kernel, and relays to
gRPC's own socket.

grpc-python does not report the peer of a Unix socket. So connections are accepted here, SO_PEERCRED
and SO_PEERPIDFD are read, and the bytes are relayed to gRPC's socket in a 0700 directory, from a
socket that is bound to a unique name in it. `context.peer()` returns that name, which leads back to
the credentials. Only this process can reach the private socket, and a name is used once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeagent.adapters.api.accounts import Accounts
from nodeagent.adapters.api.guests import Guest, GuestBook
from nodeagent.adapters.host.descriptor_room import DescriptorRoom, Spare, is_short
from nodeagent.adapters.processes.pidfd import PidfdHandle, peer_of
from nodeagent.ports.clients import Peer
from nodeagent.shell.rate_limited_log import RateLimitedLog
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 64 << 10
BACKLOG: Final = 512
MAX_AT_ONCE: Final = 64
"""Connections that are accepted before the event loop runs other tasks."""
SWEEP_S: Final = 1.0
PER_RELAY: Final = 3
"""File descriptors of a connection besides its own: the pidfd, and both ends of the relay to
gRPC."""
PAUSE_S: Final = 0.2
"""Seconds until accepting is tried again after file descriptors ran out."""


class ApiListener:
    def __init__(self, public: Path, private: Path) -> None:
        """`private` is gRPC's socket, in a directory that only this process uses."""
        self._public = public
        self._private = private
        self.guests = GuestBook()
        self._accounts = Accounts()
        self._room = DescriptorRoom()
        self._spare = Spare()
        self._peers: dict[str, tuple[Peer, Guest]] = {}
        self._names = itertools.count(1)
        self._relays = BackgroundTasks()
        self._listener: socket.socket | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._short = RateLimitedLog(log)
        self._settling = 0
        """Connections whose relay is not open yet."""

    def start(self) -> None:
        """Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._public.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(str(self._public))
        os.chmod(self._public, 0o666)
        listener.listen(BACKLOG)
        self._listener = listener
        self._listen()
        self._sweep()

    def close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for timer in self._timers:
            timer.cancel()
        self._relays.cancel()
        self._spare.close()
        with contextlib.suppress(FileNotFoundError):
            self._public.unlink()

    def known(self, name: str) -> tuple[Peer, Guest] | None:
        """The caller behind the name that gRPC reports."""
        return self._peers.get(name)

    # --- accepting ---

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _sweep(self) -> None:
        self.guests.sweep(time.monotonic())
        self._later(SWEEP_S, self._sweep)

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(delay_s, due)
        self._timers.add(timer)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(MAX_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not is_short(error) or not self._refuse_one():
                    asyncio.get_running_loop().remove_reader(self._listener)
                    self._later(PAUSE_S, self._listen)
                    return
                continue
            self._admit(connection)

    def _refuse_one(self) -> bool:
        """Accept and close one connection with the spare descriptor, so that its caller fails at
        once."""
        assert self._listener is not None
        self._short.warning("out of file descriptors: closing new connections")
        if not self._spare.give():
            self._spare.take_back()
            return False
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
        self._spare.take_back()
        return True

    def _admit(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            handle = peer_of(connection)
        except OSError as error:
            self._short.warning("connection closed, its peer cannot be identified: %s", error)
            connection.close()
            return
        uid = handle.process.uid
        room = self._room.for_root if uid == 0 else self._room.for_user
        guest: Guest | None = None
        # Connections accepted just now have not opened theirs yet.
        if not room(connection.fileno() + PER_RELAY * self._settling):
            self._short.warning("few file descriptors left: closed a connection of uid %d", uid)
        else:
            tasks: list[asyncio.Task[None]] = []
            guest = self.guests.enter(
                self._accounts.of(handle.process),
                lambda: [task.cancel() for task in tasks],
                time.monotonic(),
            )
            if guest is not None:
                served = self._serve(connection, handle, guest)
                tasks.append(self._relays.spawn(served, "relay of a connection"))
                return
            self._short.warning("too many connections: closed one of uid %d", uid)
        handle.close()
        connection.close()

    async def _serve(self, connection: socket.socket, handle: PidfdHandle, guest: Guest) -> None:
        settled = [False]
        self._settling += 1

        def settle() -> None:
            if not settled[0]:
                settled[0] = True
                self._settling -= 1

        try:
            await self._relay(Peer(handle), connection, guest, settle)
        except OSError as error:
            log.debug("relay for uid %d: %s", handle.process.uid, error)
        finally:
            settle()
            self.guests.leave(guest)
            handle.close()
            connection.close()

    async def _relay(
        self,
        peer: Peer,
        connection: socket.socket,
        guest: Guest,
        settled: Callable[[], None],
    ) -> None:
        name = self._private.parent / f"c{next(self._names)}"
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers[f"unix:{name}"] = (peer, guest)
        try:
            inner.setblocking(False)
            inner.bind(str(name))
            try:
                await asyncio.get_running_loop().sock_connect(inner, str(self._private))
            finally:
                name.unlink()  # Both ends have the name now.
            reader, writer = await asyncio.open_connection(sock=connection, limit=CHUNK_BYTES)
            try:
                in_reader, in_writer = await asyncio.open_connection(sock=inner, limit=CHUNK_BYTES)
                try:
                    await asyncio.gather(
                        _copy(reader, in_writer), _copy(in_reader, writer, settled)
                    )
                finally:
                    in_writer.transport.abort()
            finally:
                writer.close()
        finally:
            inner.close()
            del self._peers[f"unix:{name}"]


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    first: Callable[[], None] = lambda: None,
) -> None:
    """Copy bytes. `first` is called at the first byte, because gRPC sends as soon as it has
    accepted."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            first()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()
