"""Processes that still have a region's files mapped after the files were removed.

The kernel keeps a mapped file until the last process unmaps it, and shows it in /proc/PID/maps:
`…/usage.shm (deleted)` after an unlink, a path without its mount point after an umount.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from nodeagent.adapters.processes.cgroups import pod_of
from nodeagent.ports.regions import USAGE_FILE
from nodeagent.units import ANY_POD, GrantId

_NAME: Final = f"/{USAGE_FILE}".encode()
_GONE: Final = b" (deleted)"


def users_of(grant: GrantId, pod_uid: str) -> list[int]:
    """PIDs of processes that have this grant's region mapped, recognised by the path, by the
    environment they were started with, or for a container by their pod. One pass over /proc, at a
    start that found files missing."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):
            maps = Path("/proc", entry, "maps").read_bytes()
            if _NAME not in maps:
                continue
            lines = [line.removesuffix(_GONE) for line in maps.split(b"\n")]
            regions = [line for line in lines if line.endswith(_NAME)]
            if regions and _is_of(int(entry), regions, grant, pod_uid):
                found.append(int(entry))
    return sorted(found)


def _is_of(pid: int, regions: list[bytes], grant: GrantId, pod_uid: str) -> bool:
    if pod_uid not in ("", ANY_POD):
        return pod_of(pid) == pod_uid
    name = grant.encode()
    return (
        any(name in line for line in regions) or name in Path(f"/proc/{pid}/environ").read_bytes()
    )
