"""The result of a loader: the programs and maps of nodeagent/bpf by name, each a descriptor.

A loader is a process of its own, its standard input a SOCK_STREAM socket: it writes one line of
JSON, {"names": […]} with the descriptors beside it or {"error": "…"}, and ends. The reader of the
maps is independent of the loader.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PROGRAMS: Final = {
    "see_open": "CGROUP_DEVICE",
    "deny_open": "CGROUP_DEVICE",
    "see_exec": "RAW_TRACEPOINT",
    "see_exit": "RAW_TRACEPOINT",
    "see_launch": "KPROBE",
    "see_copy": "KPROBE",
    "see_driver_launch": "KPROBE",
    "see_nothing": "KPROBE",
}
"""Programs with their types as bcc names them; the prebuilt object has them in its sections' names.
A uprobe's program has the type of a kprobe's."""
MAPS: Final = (
    "records",
    "dropped",
    "gpu_devices",
    "watched_pids",
    "watched_cgroups",
    "launch_rows",
    "driver_launches",
)
PID_NAMESPACE: Final = "/proc/self/ns/pid"
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO of include/linux/proc_ns.h, the same on every kernel."""


@dataclass(frozen=True, slots=True)
class PidNamespace:
    """The PID namespace for bpf_get_ns_current_pid_tgid()."""

    device: int
    inode: int


def pid_namespace(namespace: str = PID_NAMESPACE) -> PidNamespace | None:
    """This process's PID namespace; None if PIDs are the kernel's own. Raises OSError."""
    place = os.stat(namespace)
    if place.st_ino == FIRST_PID_NAMESPACE:
        return None
    # The kernel's own encoding of a device number.
    device = os.major(place.st_dev) << 20 | os.minor(place.st_dev)
    return PidNamespace(device, place.st_ino)


def hand_over(load: Callable[[], dict[str, int]]) -> int:
    """Run a loader and return its exit status. Everything that `load` raises is reported."""
    answer = socket.socket(fileno=os.dup(0))
    try:
        found = load()
    except Exception as error:  # bcc raises nothing more specific.
        text = json.dumps({"error": str(error) or type(error).__name__})
        answer.sendall(text.encode() + b"\n")
        return 1
    text = json.dumps({"names": list(found)})
    socket.send_fds(answer, [text.encode() + b"\n"], list(found.values()))
    return 0
