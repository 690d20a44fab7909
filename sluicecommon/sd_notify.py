"""Notifies systemd of READY, STOPPING and the watchdog (sd_notify(3)); does nothing without a
notify socket."""

from __future__ import annotations

import contextlib
import socket


class SdNotify:
    def __init__(self, address: str | None) -> None:
        """`address` is $NOTIFY_SOCKET: a path, or an abstract name that starts with @."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    def send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
        ):
            out.sendto(message.encode(), self._address)
