"""The public socket: accepts connections, gets the caller's identity from the kernel, and relays to
gRPC's own socket (`sluicecommon.grpc_relay`), whose `context.peer()` leads back to the identity.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.adapters.api.accounts import Accounts
from nodeagent.adapters.api.guests import Guest, GuestBook
from nodeagent.adapters.host.descriptor_room import DescriptorRoom, Spare, is_short
from nodeagent.adapters.processes.pidfd import PidfdHandle, peer_of
from nodeagent.ports.clients import Peer
from nodeagent.shell.rate_limited_log import RateLimitedLog
from sluicecommon.background import BackgroundTasks
from sluicecommon.grpc_relay import CallerEnd, Relay

log = logging.getLogger(__name__)

BACKLOG: Final = 512
MAX_AT_ONCE: Final = 64
"""Connections that are accepted before the event loop runs other tasks."""
SWEEP_S: Final = 1.0
PER_RELAY: Final = 3
"""File descriptors of a connection besides its own: the pidfd, and both ends of the relay to
gRPC."""
PAUSE_S: Final = 0.2
"""Seconds until accepting is tried again after file descriptors ran out."""


@dataclass(eq=False, slots=True)
class _Connection(Relay):
    """The connection of a caller that was admitted."""

    handle: PidfdHandle
    peer: Peer
    on_settled: Callable[[_Connection], None]
    on_end: Callable[[_Connection], None]
    guest: Guest | None = None
    is_settled: bool = False
    """True once gRPC's end is open, so that all its file descriptors are."""

    def answered(self) -> None:
        if not self.is_settled:
            self.is_settled = True
            self.on_settled(self)

    def ended(self) -> None:
        self.answered()
        self.on_end(self)


class ApiListener:
    def __init__(self, public: Path, private: Path) -> None:
        """`private` is gRPC's socket, in a directory that only this process uses."""
        self._public = public
        self._private = private
        self.guests = GuestBook()
        self._accounts = Accounts()
        self._room = DescriptorRoom()
        self._spare = Spare()
        self._connections: dict[str, _Connection] = {}
        self._names = itertools.count(1)
        self._opening = BackgroundTasks()
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
        self._opening.cancel()
        for one in list(self._connections.values()):
            one.abort()
        self._spare.close()
        with contextlib.suppress(FileNotFoundError):
            self._public.unlink()

    def known(self, name: str) -> tuple[Peer, Guest] | None:
        """The caller behind the name that gRPC reports."""
        found = self._connections.get(name)
        return None if found is None or found.guest is None else (found.peer, found.guest)

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
        # Connections accepted just now have not opened theirs yet.
        if not room(connection.fileno() + PER_RELAY * self._settling):
            self._short.warning("few file descriptors left: closed a connection of uid %d", uid)
        else:
            relay = _Connection(
                handle,
                Peer(handle),
                self._settled,
                self._ended,
                own=self._private.parent / f"c{next(self._names)}",
                target=self._private,
            )
            relay.guest = self.guests.enter(
                self._accounts.of(handle.process), relay.abort, time.monotonic()
            )
            if relay.guest is not None:
                self._settling += 1
                self._connections[relay.name] = relay
                served = self._serve(connection, relay)
                self._opening.spawn(served, "relay of a connection", expected=(OSError,))
                return
            self._short.warning("too many connections: closed one of uid %d", uid)
        handle.close()
        connection.close()

    async def _serve(self, connection: socket.socket, relay: _Connection) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: CallerEnd(lambda _: relay), connection)
        except BaseException:
            connection.close()
            relay.ended()
            raise

    def _settled(self, relay: _Connection) -> None:
        self._settling -= 1

    def _ended(self, relay: _Connection) -> None:
        if self._connections.pop(relay.name, None) is not None:
            assert relay.guest is not None
            self.guests.leave(relay.guest)
            relay.handle.close()
