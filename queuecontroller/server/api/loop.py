"""An event loop that processes all of gRPC's pending events in every pass.

gRPC's own thread puts events into a queue and writes a byte to a socket for each. Its handler,
called once in a pass of the loop, empties the queue but reads only one byte. With more than one
event in a pass, bytes accumulate until the socket is full (at about 280); then gRPC's thread blocks
in its write, and only one event is handed over in each pass."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any, Final, TypeVarTuple

Ts = TypeVarTuple("Ts")

MAX_PER_PASS: Final = 1024


class GrpcLoop(asyncio.SelectorEventLoop):
    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Like asyncio's, but gRPC's handler is called for all its events in one pass."""
        if isinstance(fd, socket.socket) and _is_grpc(callback):
            super().add_reader(fd, lambda: _process_all(fd, callback, *args))
        else:
            super().add_reader(fd, callback, *args)


def _is_grpc(callback: Any) -> bool:
    handler = getattr(callback, "func", callback)  # The callback may be a partial.
    return type(getattr(handler, "__self__", None)).__module__.startswith("grpc.")


def _process_all(wakes: socket.socket, handler: Callable[..., Any], *args: Any) -> None:
    """Call the handler once for each pending byte: it reads one, and raises if there is none."""
    pending: int = struct.unpack("i", fcntl.ioctl(wakes, termios.FIONREAD, bytes(4)))[0]
    for _ in range(min(pending, MAX_PER_PASS)):
        handler(*args)
