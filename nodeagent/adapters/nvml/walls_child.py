"""The process that sets the driver's memory limits: reads one line of JSON with a request, answers
with one line, and ends. It is killed with its parent, which has recorded what it was doing.

Started as `python -m nodeagent.adapters.nvml.walls_child [LIBRARY]`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodeagent.adapters.host.children import die_with_parent
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.child import write_line
from nodeagent.adapters.processes.cgroups import unified_root
from nodeagent.ports.driver.walls import WallOrder, WallReading
from nodeagent.units import Bytes
from sluicecommon.plain import read_plain, write_all_fields

NO_LIMIT: Final = (1 << 64) - 1
"""NVML_DEVICE_MEMORY_LIMIT_MAX."""
NOT_THERE: Final = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
)


class SetLimits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t, which bindings before 13.615 do not have."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
    )


class GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = (*SetLimits._fields_, ("currentUsed", ctypes.c_ulonglong))


class Limits:
    def __init__(self, library: str | None) -> None:
        """Raises pynvml.NVMLError or OSError."""
        if library:
            pynvml.nvmlLib = ctypes.CDLL(library)
        pynvml.nvmlInit()

    def missing(self, gpus: Sequence[str]) -> Mapping[str, str]:
        """Reason why a card has no such limits, by UUID; found by reading the limits of the
        hierarchy's root."""
        root = unified_root()
        if root is None:
            return dict.fromkeys(gpus, "this host has no cgroup v2")
        found = {}
        for gpu in gpus:
            try:
                self.read(gpu, str(root))
            except pynvml.NVMLError as error:
                found[gpu] = (
                    "its driver has no memory limits (added in release 615)"
                    if error.value in NOT_THERE
                    else str(error)
                )
        return found

    def set(self, order: WallOrder) -> None:
        hard = NO_LIMIT if order.hard_bytes is None else order.hard_bytes
        limits = SetLimits(os.fsencode(order.cgroup), order.soft_bytes, hard)
        _call("nvmlDeviceSetMemoryLimits_v1", order.gpu, limits)

    def read(self, gpu: str, cgroup: str) -> WallReading | None:
        limits = GetLimits(os.fsencode(cgroup))
        try:
            _call("nvmlDeviceGetMemoryLimits_v1", gpu, limits)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            raise
        hard = None if limits.hardLimit == NO_LIMIT else Bytes(limits.hardLimit)
        return WallReading(Bytes(limits.softLimit), hard, Bytes(limits.currentUsed))


def _call(name: str, gpu: str, limits: ctypes.Structure) -> None:
    """Raises pynvml.NVMLError."""
    function = pynvml._nvmlGetFunctionPointer(name)
    device = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
    code = function(device, ctypes.byref(limits))
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)


def answer(request: Any, library: str | None) -> Any:
    """{"done": true}, {"missing": …} or {"readings": …}; {"error": …} if NVML refuses."""
    doing = ""
    try:
        limits = Limits(library)
        if request["do"] == "missing":
            return {"missing": limits.missing(request["gpus"])}
        if request["do"] == "read":
            readings = [limits.read(request["gpu"], cgroup) for cgroup in request["cgroups"]]
            return {"readings": write_all_fields(readings)}
        for one in request["orders"]:
            order: WallOrder = read_plain(WallOrder, one)
            doing = f"{order.gpu}, cgroup {order.cgroup}: "
            limits.set(order)
        return {"done": True}
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return {"error": f"{doing}permission denied by the driver: only root may set limits"}
        return {"error": f"{doing}{error}"}
    except OSError as error:
        return {"error": f"NVML cannot be loaded: {error}"}


def main() -> int:
    die_with_parent()
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.dup(1)
    os.dup2(2, 1)  # A library that prints must not break the protocol.
    request = json.loads(sys.stdin.readline())
    found = answer(request, sys.argv[1] if len(sys.argv) > 1 else None)
    write_line(answers, json.dumps(found) + "\n")  # Or the daemon has ended.
    return 0


if __name__ == "__main__":
    sys.exit(main())
