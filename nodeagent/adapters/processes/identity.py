"""Which process a pid is now, by /proc."""

from __future__ import annotations

from typing import Final

from nodeagent.ports.processes import Process

LARGEST_PID: Final = 1 << 22
"""PID_MAX_LIMIT of 64-bit Linux."""


def read_process(pid: int) -> Process:
    """Identity from /proc. Raises OSError when there is no such process."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The command name may hold blanks and parentheses: fields start after the last one.
        fields = stat.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"process {pid} is gone")
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
