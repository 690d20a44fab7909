"""The process in which the driver checkpoints other processes: reads one line of JSON with a
request, answers with one line, and ends. It is killed with its parent, which has recorded what it
was doing; a step that the driver has begun then completes by itself, and the next child reads the
resulting state.

Started as `python -m nodeagent.adapters.checkpoint.child [LIBRARY]`. It creates no context: cuInit
alone uses no memory of a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

from nodeagent.adapters.host.children import die_with_parent
from nodeagent.adapters.processes.identity import read_process
from nodeagent.ports.driver.checkpoint import CheckpointState, CheckpointStep

LIBRARY: Final = "libcuda.so.1"
FIRST_CUDA: Final = 12080
"""12.8, the CUDA of driver 570."""
STATES: Final[Mapping[int, CheckpointState]] = {
    0: CheckpointState.RUNNING,
    1: CheckpointState.LOCKED,
    2: CheckpointState.CHECKPOINTED,
    3: CheckpointState.FAILED,
    4: CheckpointState.MOVING,  # CHECKPOINTING and RESTORING, since CUDA 13.4.
    5: CheckpointState.MOVING,
}
CALLS: Final[Mapping[CheckpointStep, str]] = {
    CheckpointStep.LOCK: "cuCheckpointProcessLock",
    CheckpointStep.CHECKPOINT: "cuCheckpointProcessCheckpoint",
    CheckpointStep.RESTORE: "cuCheckpointProcessRestore",
    CheckpointStep.UNLOCK: "cuCheckpointProcessUnlock",
}
OUT_OF_MEMORY: Final = 2
NOT_SUPPORTED: Final = 801
MEANING: Final[Mapping[int, str]] = {
    1: "it has no CUDA context",
    OUT_OF_MEMORY: "its GPU has too little free memory",
    3: "the driver is not initialised",
    401: "it is in another state",
    600: "its submitted work did not complete in time",
    800: "permission denied by the driver",
    NOT_SUPPORTED: "the driver cannot checkpoint some of its memory (managed memory, IPC)",
}


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (
        ("timeoutMs", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class DriverFailed(Exception):
    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    def __init__(self, library: str) -> None:
        """Raises DriverFailed if this driver has no checkpoints."""
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DriverFailed(f"the driver cannot be loaded: {error}") from error
        lacking = [name for name in CALLS.values() if not hasattr(self._cuda, name)]
        if lacking:
            raise DriverFailed(f"it has no {lacking[0]} (release 570 and later have)")
        version = ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        if version.value < FIRST_CUDA:
            raise DriverFailed(
                f"it is of CUDA {version.value // 1000}.{version.value % 1000 // 10} (12.8, release"
                " 570, and later have)"
            )

    def probe(self) -> None:
        """Request this process's own state: any error but "not supported" concerns this process
        only. Raises DriverFailed."""
        try:
            self.state(os.getpid())
        except DriverFailed as error:
            if error.code == NOT_SUPPORTED:
                raise DriverFailed(
                    "it does not support them here (release 570 and later do, on x86-64)"
                ) from error

    def state(self, pid: int) -> CheckpointState:
        found = ctypes.c_int(-1)
        self._call("cuCheckpointProcessGetState", pid, ctypes.byref(found))
        if found.value not in STATES:
            raise DriverFailed(f"it is in a state that is not known here, {found.value}")
        return STATES[found.value]

    def take(self, step: CheckpointStep, pid: int, timeout_ms: int) -> None:
        args = ctypes.byref(LockArgs(timeout_ms)) if step is CheckpointStep.LOCK else None
        self._call(CALLS[step], pid, args)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise DriverFailed(f"{name}: {MEANING.get(code, 'error')} ({code})", code)


def is_there(pid: int, starttime_ticks: int) -> bool:
    """True if the process exists. Between this check and the driver's call its PID could be reused
    only if all PIDs were used within microseconds, which is not guarded against."""
    try:
        return read_process(pid).starttime_ticks == starttime_ticks
    except (OSError, ValueError):
        return False


def answer(request: Any, library: str) -> Any:
    """{"states": […]}, {"done": true} or {"missing": ""}; {"error": …, "code": …} if the driver
    refuses."""
    try:
        driver = Driver(library)
        if request["do"] == "missing":
            driver.probe()
    except DriverFailed as error:
        return {"missing" if request["do"] == "missing" else "error": str(error)}
    if request["do"] == "missing":
        return {"missing": ""}
    states = []
    for pid, starttime_ticks in request["processes"]:
        try:
            if request["do"] == "states":
                there = is_there(pid, starttime_ticks)
                states.append((driver.state(pid) if there else CheckpointState.GONE).value)
            elif is_there(pid, starttime_ticks):
                driver.take(CheckpointStep(request["do"]), pid, request["timeout_ms"])
        except DriverFailed as error:
            if is_there(pid, starttime_ticks):
                return {"error": f"process {pid}: {error}", "code": error.code}
            if request["do"] == "states":
                states.append(CheckpointState.GONE.value)
    return {"states": states, "done": True}


def main() -> int:
    die_with_parent()
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # A library that prints must not break the protocol.
    request = json.loads(sys.stdin.readline())
    library = sys.argv[1] if len(sys.argv) > 1 else LIBRARY
    answers.write(json.dumps(answer(request, library)) + "\n")
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
