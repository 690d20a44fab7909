"""The process that talks to NVML: reads one request line, answers one line of JSON, and may be
killed at any time.

A hung driver leaves its callers in uninterruptible sleep, so the daemon never calls NVML
itself. Started as `python -m nodeagent.adapters.nvml_child [LIBRARY]`; ends when its standard
input closes or its parent dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from nodeagent.adapters.nvml_binding import pynvml
from nodeagent.core.events import write_plain
from nodeagent.ports import GpuReading, NodeReading, ProcessReading
from nodeagent.units import Bytes, GpuUuid

PR_SET_PDEATHSIG: Final = 1
RECOVERY_ACTIONS: Final = {0: "none", 1: "reset", 2: "reboot", 3: "drain", 4: "drain_and_reset"}
T = TypeVar("T")


class Reader:
    def __init__(self, library: str | None) -> None:
        """Raises pynvml.NVMLError or OSError."""
        if library:
            pynvml.nvmlLib = ctypes.CDLL(library)
        pynvml.nvmlInit()
        self._driver = _text(pynvml.nvmlSystemGetDriverVersion())
        self._nvml = _optional(lambda: _text(pynvml.nvmlSystemGetNVMLVersion()))
        self._sampled_us: dict[str, int] = {}
        self._events = _optional(self._event_set)

    def read(self) -> NodeReading:
        count = pynvml.nvmlDeviceGetCount()
        gpus = []
        for index in range(count):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(self._gpu(index, handle))
        return NodeReading(
            gpus=tuple(gpus),
            driver_version=self._driver,
            nvml_version=self._nvml,
            xid_events=tuple(self._xids()),
        )

    def _gpu(self, index: int, handle: Any) -> GpuReading:
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
        name = _text(pynvml.nvmlDeviceGetName(handle))
        try:
            total_bytes, used_bytes = _memory(handle)
            error = None
        except pynvml.NVMLError as failure:
            return GpuReading(GpuUuid(uuid), index, name, Bytes(0), error=str(failure))
        utilization = _optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        power_mw = _optional(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        return GpuReading(
            uuid=GpuUuid(uuid),
            index=index,
            name=name,
            memory_total_bytes=Bytes(total_bytes),
            memory_used_bytes=Bytes(used_bytes),
            sm_count=_optional(
                lambda: int(pynvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
            ),
            pci_bus_id=_optional(lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
            numa_node=_optional(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle))),
            utilization_ratio=None if utilization is None else utilization / 100,
            temperature_celsius=_optional(
                lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            ),
            power_watts=None if power_mw is None else power_mw / 1000,
            processes=self._processes(uuid, handle),
            recovery_action=_optional(lambda: self._recovery(handle)),
            error=error,
        )

    def _processes(self, uuid: str, handle: Any) -> tuple[ProcessReading, ...]:
        # Drivers before 510 have version 2 only; the unversioned name refuses them.
        running = (
            _optional(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
            or _optional(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))
            or []
        )
        memory = {p.pid: p.usedGpuMemory for p in running}
        since = self._sampled_us.get(uuid, (time.time_ns() // 1000) - 1_000_000)
        samples = _optional(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since)) or []
        # NVML answers for its last samples; of several for one process the latest counts.
        latest: dict[int, Any] = {}
        for sample in samples:
            if sample.timeStamp > getattr(latest.get(sample.pid), "timeStamp", 0):
                latest[sample.pid] = sample
            self._sampled_us[uuid] = max(self._sampled_us.get(uuid, 0), sample.timeStamp)
        readings = []
        for pid in sorted(memory.keys() | latest.keys()):
            used = memory.get(pid)
            sample = latest.get(pid)
            readings.append(
                ProcessReading(
                    pid=pid,
                    memory_bytes=None if used is None else Bytes(used),
                    sm_ratio=None if sample is None else min(100, sample.smUtil) / 100,
                )
            )
        return tuple(readings)

    def _recovery(self, handle: Any) -> str:
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [field])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return RECOVERY_ACTIONS.get(value.value.uiVal, "unknown")

    def _event_set(self) -> Any:
        events = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _xids(self) -> list[tuple[GpuUuid, int]]:
        found: list[tuple[GpuUuid, int]] = []
        for _ in range(64):  # a storm is cut off here and goes on at the next reading
            if self._events is None:
                break
            event = _optional(lambda: pynvml.nvmlEventSetWait_v2(self._events, 0))
            if event is None:
                break
            uuid = _optional(lambda e=event: _text(pynvml.nvmlDeviceGetUUID(e.device)))  # type: ignore[misc]  # bound now
            if uuid is not None:
                found.append((GpuUuid(uuid), int(event.eventData)))
        return found


def main() -> int:
    # Our parent may be killed while we hang in the driver: then nobody else would ever end us.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides, not the terminal
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    library = sys.argv[1] if len(sys.argv) > 1 else None
    reader: Reader | None = None
    for _request in sys.stdin:
        try:
            if reader is None:
                reader = Reader(library)
            reading = reader.read()
        except pynvml.NVMLError as error:
            reading = NodeReading(error=str(error))
            if error.value in (
                pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
                pynvml.NVML_ERROR_UNINITIALIZED,
            ):
                reader = None
        except OSError as error:
            reading = NodeReading(error=f"NVML cannot be loaded: {error}")
        answers.write(json.dumps(write_plain(reading)) + "\n")
        answers.flush()
    return 0


def _memory(handle: Any) -> tuple[int, int]:
    """(what programs can have in all, what they have). Version 1 counts the driver's own part as
    used; drivers before 510 have no other."""
    read = pynvml.nvmlDeviceGetMemoryInfo
    exact = _optional(lambda: read(handle, version=pynvml.nvmlMemory_v2))
    if exact is not None:
        return exact.total - exact.reserved, exact.used
    memory = read(handle)
    return memory.total, memory.used


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _optional(read: Callable[[], T]) -> T | None:
    """Many cards and drivers lack many fields: absent is absent, not an error."""
    try:
        return read()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, AttributeError, OSError):
        return None


if __name__ == "__main__":
    sys.exit(main())
