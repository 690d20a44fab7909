"""Hot-plug and driver changes of GPUs, from the kernel's uevents.

A netlink socket of our own, see docs/decisions/node/0007-uevents.md. Only what the kernel itself
sent is read: anybody in our network namespace may send to the group, but not with port 0.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Final

from nodeagent.ports.watch import DeviceChange

log = logging.getLogger(__name__)

NETLINK_KOBJECT_UEVENT: Final = 15
KERNEL_GROUP: Final = 1
"""Group 2 is what udev says after it has looked at the same event."""
LARGEST_BYTES: Final = 16 << 10
"""The kernel's buffer for one event is 2 KiB, with the path before it at most 4 KiB more."""
RECEIVE_BUFFER_BYTES: Final = 1 << 20
"""A hot-plugged board makes hundreds of events at once."""
_DISPLAY_CLASSES: Final = ("30000", "30200")
"""PCI_CLASS without its leading zero: VGA and 3D controllers."""
_DRIVERS: Final = frozenset({"nvidia", "nvidia-drm", "nvidia-uvm"})
_MODULES: Final = frozenset({"/module/nvidia", "/module/nvidia_uvm"})


class Uevents:
    """An endpoint of the daemon: tells changes while it is open."""

    def __init__(self, tell: Callable[[DeviceChange], None]) -> None:
        self._tell = tell
        self._socket: socket.socket | None = None
        self.lost_total = 0
        """Times the kernel had to drop events: anything may have changed."""

    async def start(self) -> None:
        """Where it cannot be had, as in a network namespace of its own, there is just no news."""
        try:
            opened = socket.socket(
                socket.AF_NETLINK,
                socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                NETLINK_KOBJECT_UEVENT,
            )
        except OSError as error:
            log.warning("changes of devices are not told: %s", error)
            return
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            opened.bind((0, KERNEL_GROUP))
        except OSError as error:
            log.warning("changes of devices are not told: %s", error)
            opened.close()
            return
        self._socket = opened
        asyncio.get_running_loop().add_reader(opened, self._readable)

    async def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        assert self._socket is not None
        while True:
            try:
                data, (port, _groups) = self._socket.recvfrom(LARGEST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS
                self.lost_total += 1
                log.warning("events of devices were lost: %s", error)
                self._tell(DeviceChange("lost", "", "", ""))
                continue
            change = gpu_change(parse(data)) if port == 0 else None
            if change is not None:
                self._tell(change)


def parse(data: bytes) -> dict[str, str]:
    """`ACTION@DEVPATH`, then NAME=VALUE, each ended by NUL. Empty for what is not an event."""
    head, *pairs = data.split(b"\0")
    if b"@" not in head:
        return {}
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition(b"=")
        if equals:
            found[name.decode(errors="replace")] = value.decode(errors="replace")
    return found


def gpu_change(event: Mapping[str, str]) -> DeviceChange | None:
    """None for everything that is not about a GPU or its driver."""
    action, subsystem = event.get("ACTION", ""), event.get("SUBSYSTEM", "")
    path, driver = event.get("DEVPATH", ""), event.get("DRIVER", "")
    if subsystem == "pci":
        if event.get("PCI_CLASS") not in _DISPLAY_CLASSES and driver not in _DRIVERS:
            return None
        return DeviceChange(action, "pci", event.get("PCI_SLOT_NAME", path), driver)
    if subsystem == "module" and path in _MODULES:
        return DeviceChange(action, "module", path.rpartition("/")[2], "")
    return None
