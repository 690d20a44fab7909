"""The layouts of nodeagent/bpf/records.h, and the conversion of their rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from nodeagent.ports.telemetry import HISTOGRAM_BUCKETS
from nodeagent.settings.daemon import device_numbers

RECORD: Final = struct.Struct("=QQ8I16s")
DEVICE_KEY: Final = struct.Struct("=II")
LAUNCH_KEY: Final = struct.Struct("=II")
LAUNCH_ROW: Final = struct.Struct(f"={8 + 2 * HISTOGRAM_BUCKETS}Q")
WORD: Final = struct.Struct("=Q")
PID: Final = struct.Struct("=I")

RECORD_OPEN: Final = 1
RECORD_EXEC: Final = 2
RECORD_EXIT: Final = 3
ANY_MINOR: Final = 0xFFFFFFFF
ACCESS: Final = ((1, "m"), (2, "r"), (4, "w"))
"""BPF_DEVCG_ACC_*."""
DROPPED_RECORDS: Final = 0
DROPPED_ROWS: Final = 1


@dataclass(frozen=True, slots=True)
class Record:
    at_ns: int
    cgroup_id: int
    kind: int
    pid: int
    uid: int
    major: int
    minor: int
    access: str
    denied: bool
    command: str


def read_record(data: bytes) -> Record:
    """The event of a record. Raises struct.error if it is malformed."""
    at, cgroup, kind, pid, uid, major, minor, access, denied, _, command = RECORD.unpack(
        data[: RECORD.size]
    )
    return Record(
        at,
        cgroup,
        kind,
        pid,
        uid,
        major,
        minor,
        "".join(letter for bit, letter in ACCESS if access & bit),
        bool(denied),
        command.split(b"\0")[0].decode("utf-8", "replace"),
    )


@dataclass(frozen=True, slots=True)
class LaunchRow:
    launches: int
    copies: int
    cost_ns: int
    waited_ns: int
    first_ns: int
    last_ns: int
    grant: int
    unreadable: int
    wait: tuple[int, ...]
    gap: tuple[int, ...]


def read_row(data: bytes) -> LaunchRow:
    words = LAUNCH_ROW.unpack(data)
    launches, copies, cost, waited, first, last, grant, unreadable = words[:8]
    return LaunchRow(
        launches,
        copies,
        cost,
        waited,
        first,
        last,
        grant,
        unreadable,
        wait=words[8 : 8 + HISTOGRAM_BUCKETS],
        gap=words[8 + HISTOGRAM_BUCKETS :],
    )


def gpu_devices(spelled: str, proc_devices: str) -> tuple[tuple[int, int], ...]:
    """Major and minor numbers (or ANY_MINOR) of GPU devices: as configured, or every major that the
    driver has in /proc/devices. Raises ValueError."""
    configured = device_numbers(spelled)
    if configured:
        return tuple((major, ANY_MINOR if minor is None else minor) for major, minor in configured)
    found = []
    for line in proc_devices.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name.startswith("nvidia"):
            found.append((int(number), ANY_MINOR))
    return tuple(dict.fromkeys(found))
