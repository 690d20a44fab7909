"""The gRPC listeners: a Unix socket, whose peer the kernel names, and TCP for TLS.

Connections are accepted here and relayed to gRPC's own sockets (`sluicecommon.grpc_relay`), whose
`context.peer()` identifies the connection. TLS is terminated by gRPC.

The resources of unauthenticated clients are bounded before anything is read: their connections are
few and short-lived, and the address with the most loses its own first. Connections of one caller
are limited, and a part of all is reserved for nodes and admins. A connection that sends too much is
throttled, and callers that send many calls at once are read in turns (fair_reading.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queuecontroller.server.callers.fair_reading import FairReading
from queuecontroller.state.access import Caller, Role
from sluicecommon.grpc_relay import CallerEnd, Relay
from sluicecommon.web.listener import lengthen_backlog

log = logging.getLogger(__name__)

MAX_UNAUTHENTICATED: Final = 256
"""Limit of connections without a call yet. A TLS handshake takes 10 ms, so only an attack reaches
it."""
PROVE_WITHIN_S: Final = 10.0
"""Limit of the time to the first call."""
LOCAL_WITHIN_S: Final = 120.0
"""The same for a connection over the Unix socket that has sent something. Its user is known, and
its call may wait in gRPC while this process is busy: an `apply` of 1,000 objects beside 1,000 nodes
that connect was cut off after 10 s."""
BURST_BYTES: Final = 5 << 20
"""Burst that one connection may send: a message of the default size, and small ones."""
BYTES_A_SECOND: Final = 1 << 20
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
RESERVED_PART: Final = 4
"""One in four connections is reserved for nodes and admins."""
MAX_OF: Final = {Role.USER: 32, Role.CHECK: 32, Role.NODE: 16, Role.ADMIN: 128}
"""Limit of connections of one caller. A node has one, and a second while it reconnects."""
_BACKLOG: Final = 1024
_ACCEPTS_A_PASS: Final = 16
"""Connections accepted per pass of the event loop; accepting a thousand at once would block it for
0.2 s."""


class Crowded(Exception):
    """A caller exceeds a limit; the text names it."""


@dataclass(eq=False, slots=True)
class Connection(Relay):
    address: str
    """Host address or `uid 1000`, by which it is counted until it is authenticated."""
    since_s: float
    tls: bool
    on_end: Callable[[Connection], None] = lambda connection: None
    kernel: Caller | None = None
    """Caller by the socket's peer credentials."""
    caller: Caller | None = None
    """The authenticated caller."""
    budget: float = BURST_BYTES
    budget_at_s: float = 0.0
    read_at_s: float = 0.0
    wrong_tokens: int = 0

    def received(self, nbytes: int) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        gained = (now_s - self.budget_at_s) * BYTES_A_SECOND
        self.budget = min(BURST_BYTES, self.budget + gained) - nbytes
        self.budget_at_s = self.read_at_s = now_s
        if self.budget < 0:
            self.stop("bytes")
            loop.call_later(-self.budget / BYTES_A_SECOND, self.go_on, "bytes")

    def is_late(self, now_s: float) -> bool:
        """True if its first call should have begun by now."""
        local = self.kernel is not None and self.read_at_s > 0.0
        return now_s - self.since_s > (LOCAL_WITHIN_S if local else PROVE_WITHIN_S)

    def ended(self) -> None:
        self.on_end(self)


class Listeners:
    def __init__(self, most: int, private: Path, kernel: Callable[[int], Caller]) -> None:
        """`private` is a directory of mode 0700; `kernel` returns the caller of a uid."""
        self._most = most
        self._private = private
        self._kernel = kernel
        self._numbers = itertools.count(1)
        self._connections: dict[str, Connection] = {}
        self._unproven: dict[Connection, None] = {}
        self._of_caller: dict[str, dict[Connection, None]] = {}
        self._pauses: dict[str, float] = {}
        """Last pause of callers that exceeded their limit, seconds."""
        self._paused: set[str] = set()
        self._busy: set[str] = set()
        """Callers with enough calls waiting."""
        self._listeners: list[asyncio.Server] = []
        self._keeping: asyncio.Task[None] | None = None
        self._socket: Path | None = None
        self.reading = FairReading()
        self.refused_total = 0
        """Number of connections closed because of a limit."""

    @property
    def plain_target(self) -> str:
        return f"unix:{self._private / 'plain.sock'}"

    @property
    def tls_target(self) -> str:
        return f"unix:{self._private / 'tls.sock'}"

    # -- opening ----------------------------------------------------------------------------------

    async def listen_unix(self, path: Path) -> None:
        """Raises OSError."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and await _answers(path):
            raise OSError(f"server.socket: {path}: another process is listening there")
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(
            lambda: CallerEnd(self._plain), str(path), backlog=_ACCEPTS_A_PASS
        )
        lengthen_backlog(server, _BACKLOG)
        # Every user may connect; the peer's uid decides its rights.
        os.chmod(path, 0o666)
        self._listeners.append(server)
        self._socket = path

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on a TCP address; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: CallerEnd(self._tls), host, port, backlog=_ACCEPTS_A_PASS, reuse_port=False
        )
        lengthen_backlog(server, _BACKLOG)
        self._listeners.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def start(self) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._keeping is not None:
            self._keeping.cancel()
        for one in list(self._connections.values()):
            one.abort()
        self.reading.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    # -- callers ----------------------------------------------------------------------------------

    def of(self, peer: str) -> Connection | None:
        """The connection with gRPC's name of the peer."""
        return self._connections.get(peer)

    def __len__(self) -> int:
        return len(self._connections)

    def prove(self, connection: Connection, caller: Caller) -> None:
        """Assign the connection to an authenticated caller. If the caller has too many, it is
        closed and Crowded is raised."""
        if connection.caller is not None:
            return
        most = max((MAX_OF[role] for role in caller.roles), default=4)
        trusted = caller.roles & {Role.NODE, Role.ADMIN}
        strangers = sum(map(len, self._of_caller.values()))
        reserve = 0 if trusted else self._most // RESERVED_PART
        why = ""
        if len(self._of_caller.get(caller.key, ())) >= most:
            why = f"{caller.shown}: too many connections (limit {most})"
        elif strangers >= self._most - reserve:
            why = f"{strangers} connections are open; the rest is reserved for nodes and admins"
        if why:
            self.refused_total += 1
            # The delay lets the answer reach the client first.
            asyncio.get_running_loop().call_later(0.5, connection.abort)
            raise Crowded(why)
        connection.caller = caller
        self._unproven.pop(connection, None)
        self._of_caller.setdefault(caller.key, {})[connection] = None
        if caller.key in self._paused:
            connection.stop("penalty")
        if caller.key in self._busy:
            connection.stop("busy")
        self.reading.joined(caller.key, connection)

    def began(self, connection: Connection) -> None:
        """Record that a call of the connection begins."""
        now_s = asyncio.get_running_loop().time()
        line_s = now_s - connection.read_at_s
        if connection.caller is not None:
            self.reading.began(connection.caller.key, connection, now_s)
        self.reading.waited(line_s, now_s)

    def busy(self, caller: Caller, enough: bool) -> None:
        """Pause reading of a caller with enough waiting calls, or resume it."""
        if enough is (caller.key in self._busy):
            return
        if enough:
            self._busy.add(caller.key)
            self.reading.saw_many(caller.key, asyncio.get_running_loop().time())
        else:
            self._busy.discard(caller.key)
        for one in list(self._of_caller.get(caller.key, ())):
            if enough:
                one.stop("busy")
            else:
                one.go_on("busy")

    def slow_down(self, caller: Caller) -> None:
        """Pause reading of a caller; each pause is twice as long if it continues at once."""
        if caller.key in self._paused:
            return
        seconds = min(LONGEST_PAUSE_S, 2 * self._pauses.get(caller.key, FIRST_PAUSE_S / 2))
        self._pauses[caller.key] = seconds
        self._paused.add(caller.key)
        for one in list(self._of_caller.get(caller.key, ())):
            one.stop("penalty")
        asyncio.get_running_loop().call_later(seconds, self._end_penalty, caller.key, seconds)

    def _end_penalty(self, key: str, seconds: float) -> None:
        self._paused.discard(key)
        for one in list(self._of_caller.get(key, ())):
            one.go_on("penalty")
        asyncio.get_running_loop().call_later(LONGEST_PAUSE_S, self._forgive, key, seconds)

    def _forgive(self, key: str, seconds: float) -> None:
        if self._pauses.get(key) == seconds and key not in self._paused:
            del self._pauses[key]

    # -- connections ------------------------------------------------------------------------------

    def _plain(self, transport: asyncio.Transport) -> Connection | None:
        uid = _uid_of(transport.get_extra_info("socket"))
        connection = self._connection(f"uid {uid}", False)
        connection.kernel = self._kernel(uid)
        return self._admitted(connection, transport)

    def _tls(self, transport: asyncio.Transport) -> Connection | None:
        peer = transport.get_extra_info("peername")
        return self._admitted(self._connection(str(peer[0]) if peer else "?", True), transport)

    def _connection(self, address: str, tls: bool) -> Connection:
        now_s = asyncio.get_running_loop().time()
        target = self.tls_target if tls else self.plain_target
        return Connection(
            address,
            now_s,
            tls,
            self._ended,
            own=self._private / f"c{next(self._numbers)}",
            target=Path(target.removeprefix("unix:")),
            budget_at_s=now_s,
        )

    def _admitted(self, connection: Connection, transport: asyncio.Transport) -> Connection | None:
        """The new connection; None if it is refused."""
        if not self._has_room(connection):
            self.refused_total += 1
            transport.abort()
            return None
        self._unproven[connection] = None
        self._connections[connection.name] = connection
        return connection

    def _has_room(self, connection: Connection) -> bool:
        """True if another connection fits; if not, the address with the most unauthenticated
        connections loses one."""
        kernel = connection.kernel
        if kernel is not None:
            have = len(self._of_caller.get(kernel.key, ()))
            if have >= max(MAX_OF[role] for role in kernel.roles):
                return False
        if len(self._unproven) < MAX_UNAUTHENTICATED and len(self._connections) < self._most:
            return True
        shares = Counter(one.address for one in self._unproven)
        if not shares:
            return False
        greediest, count = shares.most_common(1)[0]
        if count <= shares[connection.address]:
            return False
        victim = next(one for one in self._unproven if one.address == greediest)
        self.refused_total += 1
        victim.abort()
        self._ended(victim)
        return True

    def _ended(self, connection: Connection) -> None:
        if self._connections.pop(connection.name, None) is None:
            return
        self._unproven.pop(connection, None)
        if connection.caller is not None:
            key = connection.caller.key
            mine = self._of_caller[key]
            del mine[connection]
            if not mine:
                del self._of_caller[key]
            self.reading.left(key, connection)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now_s = asyncio.get_running_loop().time()
            for one in [one for one in self._unproven if one.is_late(now_s)]:
                log.info("%s: no call within %g s", one.address, now_s - one.since_s)
                self.refused_total += 1
                one.abort()


def _uid_of(connection: Any) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", raw)[1]
    return uid


async def _answers(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    writer.close()
    return True
