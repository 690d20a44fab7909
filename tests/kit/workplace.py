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
_TAKEN: deque[socket.socket] = deque(maxlen=256)
"""A name in the kernel's table of abstract sockets for each port that this process took. Others see them, and they end with us."""


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A short path: Unix sockets allow 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="sluice-demo-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on, and that no other test process is given: seconds may pass until it is listened on,
    and some hundred tests look for ports meanwhile. The last 256 stay reserved as long as this process lives."""
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
            if len(_TAKEN) == _TAKEN.maxlen:
                _TAKEN[0].close()
            _TAKEN.append(name)
            return port


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
