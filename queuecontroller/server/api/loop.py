"""An event loop that hears all that gRPC has for it, in every pass.

gRPC's own thread puts what happened into a queue, and for each writes a byte to a socket. Its
handler, called once a pass of the loop, empties the queue, but reads one byte. While more than one
thing happens in a pass, bytes pile up until the socket is full (at some 280); then gRPC's thread
waits in its write, and one thing is handed over a pass, whatever stands behind it.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, TypeVarTuple

Ts = TypeVarTuple("Ts")

MOST_A_PASS: Final = 1024


class GrpcLoop(asyncio.SelectorEventLoop):
    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """As asyncio's; of gRPC's handler, all calls that are due are made in one pass."""
        if isinstance(fd, socket.socket) and _is_grpc(callback):
            super().add_reader(fd, lambda: _hear_all(fd, callback, *args))
        else:
            super().add_reader(fd, callback, *args)


def _is_grpc(callback: Any) -> bool:
    handler = getattr(callback, "func", callback)  # of a partial
    return type(getattr(handler, "__self__", None)).__module__.startswith("grpc.")


def _hear_all(wakes: socket.socket, handler: Callable[..., Any], *args: Any) -> None:
    """Once for each byte: the handler reads one, and raises where there is none."""
    pending: int = struct.unpack("i", fcntl.ioctl(wakes, termios.FIONREAD, bytes(4)))[0]
    for _ in range(min(pending, MOST_A_PASS)):
        handler(*args)
