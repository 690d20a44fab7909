"""The process that receives the kernel's uevents with pyroute2 and writes those about GPUs and
their driver to its standard output, one JSON object per line.

It is a process of its own because importing pyroute2 takes more memory than the daemon can spare,
see docs/decisions/node/0007-uevents.md. Started as
`python -m nodeagent.adapters.nvml.uevents_child`; ends when its standard input closes.

Lines: {"listening": true} once, {"failed": REASON} instead of it, then {"change": DeviceChange}
and {"lost": REASON}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nodeagent.ports.watch import DeviceChange
from sluicecommon.plain import write_all_fields

KERNEL_GROUP: Final = 1
"""The multicast group of the kernel's own events; udev sends to group 2 after it has run its
rules on the same event."""
KERNEL_PORT: Final = 0
"""Port of messages that the kernel sent. Any process in the network namespace can send to the
group, but not from this port."""
MAX_MESSAGE_BYTES: Final = 16 << 10
"""The kernel's buffer for one event is 2 KiB, with the path before it at most 4 KiB more."""
NICENESS: Final = 10
"""Importing pyroute2 takes 0.3 s of CPU time, which the daemon needs more while it starts."""
_DISPLAY_CLASSES: Final = ("30000", "30200")
"""PCI_CLASS without its leading zero: VGA and 3D controllers."""
_DRIVERS: Final = frozenset({"nvidia", "nvidia-drm", "nvidia-uvm"})
_MODULES: Final = frozenset({"/module/nvidia", "/module/nvidia_uvm"})


def open_socket() -> socket.socket:
    """A non-blocking socket that receives the kernel's uevents. Raises OSError, ImportError."""
    from pyroute2.netlink.nlsocket import NetlinkSocket
    from pyroute2.netlink.uevent import UeventSocket

    opened = UeventSocket()
    try:
        # UeventSocket.bind of pyroute2 0.7 joins every group, udev's included.
        NetlinkSocket.bind(opened, groups=KERNEL_GROUP)
        # pyroute2 does not return a message's sender, so the messages are received from here.
        receiver = socket.socket(fileno=os.dup(opened.fileno()))
    finally:
        opened.close()
    receiver.setblocking(False)
    return receiver


def received(receiver: socket.socket) -> Iterator[dict[str, Any]]:
    """The lines to write for all messages that the socket has now."""
    while True:
        try:
            data, (port, _groups) = receiver.recvfrom(MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:  # ENOBUFS: the kernel dropped events.
            yield {"lost": str(error)}
            continue
        change = gpu_change(parse(data)) if port == KERNEL_PORT else None
        if change is not None:
            yield {"change": write_all_fields(change)}


def parse(data: bytes) -> dict[str, str]:
    """The NAME=VALUE pairs of one uevent; empty if the message is not a uevent."""
    from pyroute2.netlink.uevent import MarshalUevent

    if b"@" not in data.partition(b"\0")[0]:
        return {}
    try:
        messages = list(MarshalUevent().parse(data))
    except (ValueError, TypeError, LookupError):  # Not UTF-8: no GPU event is such.
        return {}
    return {
        name: value
        for message in messages
        for name, value in message.items()
        if isinstance(value, str)
    }


def gpu_change(event: Mapping[str, str]) -> DeviceChange | None:
    """The change that an event reports; None if it is not about a GPU or its driver."""
    action, subsystem = event.get("ACTION", ""), event.get("SUBSYSTEM", "")
    path, driver = event.get("DEVPATH", ""), event.get("DRIVER", "")
    if subsystem == "pci":
        if event.get("PCI_CLASS") not in _DISPLAY_CLASSES and driver not in _DRIVERS:
            return None
        return DeviceChange(action, "pci", event.get("PCI_SLOT_NAME", path), driver)
    if subsystem == "module" and path in _MODULES:
        return DeviceChange(action, "module", path.rpartition("/")[2], "")
    return None


def main() -> int:
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    try:
        receiver = open_socket()
    except (OSError, ImportError) as error:
        write({"failed": str(error)})
        return 1
    with receiver:
        write({"listening": True})
        poll = select.poll()
        poll.register(receiver, select.POLLIN)
        poll.register(sys.stdin, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if sys.stdin.fileno() in ready:  # The daemon writes nothing, so this is its end.
                return 0
            for line in received(receiver):
                write(line)


def write(message: dict[str, Any]) -> None:
    """Write one line. Ends the process if the daemon does not exist any more."""
    try:
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
