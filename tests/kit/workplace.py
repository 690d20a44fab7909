"""A scene's own directory, and its ports on the loopback."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
PORTS = range(10_000, 32_768)
"""Below those of outgoing connections (ip_local_port_range in ip(7)): no connection takes one before its user listens."""
_RESERVATIONS: deque[socket.socket] = deque(maxlen=256)
"""Sockets bound to abstract names (unix(7)), one for each port that this process reserved. The kernel frees the names when it exits."""


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A short path: Unix sockets allow 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="sluice-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_port() -> int:
    """A TCP port on which nothing listens, reserved for this process: seconds may pass before the caller listens on it, and
    other test processes ask for ports meanwhile. A process keeps its last 256 reservations until it exits."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0sluice-test-port-{port}")
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            name.close()
        else:
            if len(_RESERVATIONS) == _RESERVATIONS.maxlen:
                _RESERVATIONS[0].close()
            _RESERVATIONS.append(name)
            return port


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
