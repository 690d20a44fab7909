"""Two lanes for `pytest -n`: what needs the machine for itself runs in one, one test after the other; what only computes runs
beside it, file by file, and gives way to it.

The first lane starts daemons, measures shares, loads programs into the kernel: it mostly waits. The second is nothing but
Python and short programs, at the lowest priority, so a measured share is not disturbed by it.
"""

from __future__ import annotations

import os

from xdist.scheduler import LoadScopeScheduling

COMPUTES = ("abi", "fuzz", "packages", "properties", "queue", "supply", "unit")
"""Folders of tests that need no other process to be on time."""
NEEDS_THE_MACHINE = ("tests/queue/service/",)
LOWEST = 19


def lane(path: str) -> str:
    """Of a test, by its node id or its file: what is in one lane runs in one process, in order."""
    file = path.partition("::")[0]
    if file.startswith(NEEDS_THE_MACHINE) or file.split("/")[1] not in COMPUTES:
        return "machine"
    return file


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


def give_way(path: str) -> None:
    """To be called before each test: what it starts has its priority. Only root has the way back."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0 if lane(path) == "machine" else LOWEST)
