"""Lanes for `pytest -n`: tests of one lane run one after the other, in order. Those that start daemons, measure shares and load
programs into the kernel mostly wait, so three such lanes share the machine; what only computes runs beside them, file by
file and at the lowest priority, so that a measured share is not disturbed by it.
"""

from __future__ import annotations

import os

from xdist.scheduler import LoadScopeScheduling

COMPUTES = ("abi", "fuzz", "packages", "properties", "queue", "supply", "unit")
"""Folders of tests that need no other process to be on time."""
WAITS = {"tests/ebpf/": "kernel", "tests/queue/service/": "service"}
"""Lanes of their own; all the rest is in `machine`, where shares are measured."""
LOWEST = 19


def lane(path: str) -> str:
    """Of a test, by its node id or its file: what is in one lane runs in one process, in order."""
    file = path.partition("::")[0]
    for folder, name in WAITS.items():
        if file.startswith(folder):
            return name
    return file if file.split("/")[1] in COMPUTES else "machine"


class Lanes(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


def give_way(path: str) -> None:
    """To be called before each test: what it starts has its priority. Only root has the way back."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST if lane(path).endswith(".py") else 0)
