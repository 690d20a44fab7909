"""Memory in use on a node's GPUs as the driver counts it, never as Sluice does."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.node import Node
from tests.kit.places import SIM


def used_bytes(node: Node, index: int) -> int:
    """Memory in use on a GPU as the driver counts it, asked anew (not the daemon's cached reading)."""
    return next(used for at, used in driver_memory(node) if at == index)


def driver_memory(node: Node) -> list[tuple[int, int]]:
    """(index, bytes that programs have) of every GPU, asked of NVML."""
    program = (
        "import pynvml as n\n"
        "n.nvmlInit()\n"
        "for i in range(n.nvmlDeviceGetCount()):\n"
        "    gpu = n.nvmlDeviceGetHandleByIndex(i)\n"
        "    print(i, n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2).used)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        text=True,
        capture_output=True,
        timeout=30,
        env=node.environment(LD_LIBRARY_PATH=str(SIM)),
    ).stdout
    return [(int(a), int(b)) for a, b in (line.split() for line in out.splitlines())]
