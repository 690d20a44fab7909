"""Figures of the host and of our own processes, from psutil."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil

from nodeagent.ports.views import HostFigures, OwnProcess


def read_host(processes: Mapping[str, int | None]) -> HostFigures:
    """Memory, load and our processes. `processes` has our processes' names and PIDs; one that has
    ended is left out."""
    memory = psutil.virtual_memory()
    own = []
    for name, pid in processes.items():
        if pid is None:
            continue
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                own.append(OwnProcess(name, process.memory_info().rss, times.user + times.system))
        except psutil.Error:
            continue
    return HostFigures(
        memory_bytes=memory.total,
        memory_available_bytes=memory.available,
        cpus=os.cpu_count() or 1,
        load_average=os.getloadavg()[0],
        processes=tuple(own),
    )
