"""Ends of a leading replica: killed, stopped past its lease and let go on, or cut off from the API server."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

from tests.cluster.control_plane import ControlPlane
from tests.cluster.queueing import Replica, leader_of
from tests.kit.node import until

KINDS = ("kill", "kill", "stop", "cut")
SHORT_LEASE_S = 1.0
"""The shortest that is allowed: most of a kill is the wait for its end. A replica too slow for it loses it, which is one
more change of leaders."""


def end_leader(
    kind: str, plane: ControlPlane, replicas: list[Replica], victim: Replica, way: Way
) -> None:
    """`way`: between this replica and the API server."""
    if kind == "stop":
        stop(plane, replicas, victim)
    elif kind == "cut":
        cut(plane, replicas, victim, way)
    else:
        victim.end(signal.SIGKILL)
        victim.start()


def stop(plane: ControlPlane, replicas: list[Replica], victim: Replica) -> None:
    """Past its lease: when it goes on, it believes for a moment that it leads."""
    others = [one for one in replicas if one is not victim]
    assert victim.process is not None
    victim.process.send_signal(signal.SIGSTOP)
    try:
        until("another leads", lambda: leader_of(plane, others), 120)
    finally:
        victim.process.send_signal(signal.SIGCONT)


class Way:
    """Between one replica and the API server. While it is cut nothing comes through and nothing is lost: what was written
    arrives afterwards."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
                other = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def close(self) -> None:
        self._open.set()
        self._listener.close()


def cut(plane: ControlPlane, replicas: list[Replica], victim: Replica, way: Way) -> None:
    others = [one for one in replicas if one is not victim]
    with way.cut():
        until("another leads", lambda: leader_of(plane, others), 120)
