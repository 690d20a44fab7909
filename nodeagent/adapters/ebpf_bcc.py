"""The loader that uses bcc: compiles nodeagent/bpf, loads every program, hands their descriptors
over and ends.

A process of its own, for LLVM needs 180 MiB to compile and never gives them back. Started as
`python -m nodeagent.adapters.ebpf_bcc`, its standard input a SOCK_STREAM socket: it answers one
line of JSON, with the descriptors beside it. bcc is found where distributions put it, which a
virtual environment does not look in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.ebpf_headers import kernel_headers

DIST_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
"""Debian's, Ubuntu's; Fedora's and SUSE's Python have bcc on their own path."""
BPF: Final = Path(__file__).resolve().parents[1] / "bpf"
PROTO: Final = (BPF.parents[1] / "proto", BPF.parent / "native" / "proto")
"""Where launch_event.h is: in a checkout, and installed."""
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
"""A uprobe's program has the type of a kprobe's."""
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


def find_bcc() -> bool:
    """Whether `import bcc` will work; extends the path where it has to, by bcc alone."""
    if importlib.util.find_spec("bcc") is not None:
        return True
    place = DIST_PACKAGES / "bcc" / "__init__.py"
    if not place.is_file():
        return False
    spec = importlib.util.spec_from_file_location(
        "bcc", place, submodule_search_locations=[str(place.parent)]
    )
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    assert spec.loader is not None
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError):  # a libbcc that cannot be loaded
        del sys.modules["bcc"]
        return False
    return True


def pid_namespace_flags(namespace: str = PID_NAMESPACE) -> list[str]:
    """None where pids are the kernel's own. Raises OSError."""
    place = os.stat(namespace)
    if place.st_ino == FIRST_PID_NAMESPACE:
        return []
    device = os.major(place.st_dev) << 20 | os.minor(place.st_dev)  # as the kernel has it, inside
    return [f"-DPID_NAMESPACE_DEVICE={device}ULL", f"-DPID_NAMESPACE={place.st_ino}ULL"]


def load() -> tuple[list[str], list[int]]:
    """Names and descriptors of programs and maps. Raises what bcc raises, which is Exception."""
    headers = kernel_headers()
    if headers is not None:
        os.environ.update(headers.environment)
    from bcc import BPF as Module

    proto = next((place for place in PROTO if (place / "launch_event.h").is_file()), PROTO[0])
    source = (BPF / "watch.c").read_text(encoding="utf-8")
    module: Any = Module(
        text=source,
        cflags=[
            *(headers.flags if headers is not None else ()),
            *pid_namespace_flags(),
            f"-I{BPF}",
            f"-I{proto}",
            "-Wno-macro-redefined",
            "-Wno-unused-function",
        ],
    )
    names, fds = [], []
    for name, kind in PROGRAMS.items():
        names.append(name)
        fds.append(module.load_func(name, getattr(Module, kind)).fd)
    for name in MAPS:
        names.append(name)
        fds.append(module[name].map_fd)
    return names, fds


def main() -> int:
    answer = socket.socket(fileno=os.dup(0))
    if not find_bcc():
        text = json.dumps({"error": "bcc cannot be imported"})
        answer.sendall(text.encode() + b"\n")
        return 1
    try:
        names, fds = load()
    except Exception as error:  # bcc raises nothing narrower
        answer.sendall(json.dumps({"error": str(error) or type(error).__name__}).encode() + b"\n")
        return 1
    socket.send_fds(answer, [json.dumps({"names": names}).encode() + b"\n"], fds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
