"""The process that a PID belongs to now, from /proc."""

from __future__ import annotations

from typing import Final

from nodeagent.ports.processes import Process

LARGEST_PID: Final = 1 << 22
"""PID_MAX_LIMIT of 64-bit Linux."""


def read_process(pid: int) -> Process:
    """A process's identity from /proc. Raises OSError if it does not exist."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name may contain blanks and parentheses, so fields start after the last
        # parenthesis.
        fields = stat.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"process {pid} has ended")
    uid = gid = 0
    ns_pid = pid
    with open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            name, _, rest = line.partition(b":")
            if name == b"Uid":
                uid = int(rest.split()[0])
            elif name == b"Gid":
                gid = int(rest.split()[0])
            elif name == b"NSpid":
                ns_pid = int(rest.split()[-1])
    return Process(pid, int(fields[19]), uid, gid, ns_pid)
