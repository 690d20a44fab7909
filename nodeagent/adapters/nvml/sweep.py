"""One pass over the GPUs through NVML, in three tiers by how fast a value changes.

Properties of a card are read once; memory, load, processes and power at every sweep; error
counters, links and MIG every SLOW_EVERY_S, because each NVML call takes a driver lock that launches
also take. A value that a card or driver does not support is None and is not requested again until
the next start.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nodeagent.adapters.nvml import fields as nvml_fields
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.gpm import Profiler
from nodeagent.adapters.nvml.numa import nearest_numa_node
from nodeagent.ports.gpus import (
    SWITCH,
    CardProblem,
    GpuReading,
    MigReading,
    NodeReading,
    ProcessReading,
)
from nodeagent.units import Bytes, GpuUuid

SLOW_EVERY_S: Final = 5.0
"""Maximum age in seconds of error counters, links and the list of MIG devices in a reading."""
RECOVERY_ACTIONS: Final = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
THROTTLE_REASONS: Final = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""nvmlClocksEventReason*, without idleness (1), application clocks (2) and display clocks
(0x100)."""
NO_INSTANCE: Final = 0xFFFFFFFF
"""Instance number of a process that uses no MIG instance; pynvml may return None for it."""
TO_SWITCH: Final = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
MAX_XIDS: Final = 64
"""Maximum XIDs per sweep; the rest of a storm follows in the next one."""
NEVER_AGAIN: Final = frozenset(
    {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
)
MISMATCH: Final[type[Exception]] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
"""Bindings of the time of driver 535 have no such exception."""
T = TypeVar("T")


@dataclass(slots=True)
class _Card:
    """State of one GPU between sweeps."""

    handle: Any
    uuid: GpuUuid
    name: str
    sm_count: int | None
    pci_bus_id: str | None
    numa_node: int | None
    profiler: Profiler | None
    architecture: str | None
    brand: str | None
    compute_capability: str | None
    unsupported: set[str] = field(default_factory=set)
    slow: dict[str, Any] = field(default_factory=dict)
    slow_at_s: float = float("-inf")
    sampled_us: int = 0


class Sweeper:
    def __init__(self, library: str | None, monotonic_s: Callable[[], float] = time.monotonic):
        """Raises pynvml.NVMLError or OSError."""
        if library:
            pynvml.nvmlLib = ctypes.CDLL(library)
        self._now_s = monotonic_s
        pynvml.nvmlInit()
        self._driver = text(pynvml.nvmlSystemGetDriverVersion())
        self._nvml = optional(lambda: text(pynvml.nvmlSystemGetNVMLVersion()))
        self._cuda = optional(lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion_v2()))
        self._cards: dict[int, _Card] = {}
        self._unread: dict[int, CardProblem] = {}
        self._unread_at_s = float("-inf")
        self._without_xids: dict[int, CardProblem] = {}
        self._wait_failed = ""
        """NVML's reason why it reports no XID of any card; empty if it does."""
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as failure:
            self._events, self._wait_failed = None, str(failure)
        self._find_cards(pynvml.nvmlDeviceGetCount())

    def sweep(self) -> NodeReading:
        """Read all GPUs. Raises pynvml.NVMLError if the driver as a whole does not answer."""
        # Fails if the driver was replaced or unloaded since the start.
        count = pynvml.nvmlDeviceGetCount()
        if len(self._cards) < count and self._now_s() - self._unread_at_s >= SLOW_EVERY_S:
            self._find_cards(count)
        xids = tuple(self._xids())
        changed = {uuid for uuid, _code in xids}
        return NodeReading(
            gpus=tuple(
                self._gpu(index, card, card.uuid in changed)
                for index, card in sorted(self._cards.items())
            ),
            driver_version=self._driver,
            nvml_version=self._nvml,
            cuda_version=self._cuda,
            xid_events=xids,
            unread=tuple(self._unread[index] for index in sorted(self._unread)),
            without_xids=tuple(
                self._without_xids.get(index)
                or CardProblem(index, card.name, self._wait_failed, card.uuid)
                for index, card in sorted(self._cards.items())
                if self._wait_failed or index in self._without_xids
            ),
        )

    def _find_cards(self, count: int) -> None:
        """Look at the cards that have no handle yet. One that does not answer is looked at again
        later, and the others are served meanwhile."""
        self._unread_at_s = self._now_s()
        for index in range(count):
            if index in self._cards:
                continue
            try:
                card = self._card(index)
            except pynvml.NVMLError as failure:
                self._unread[index] = CardProblem(index, "", str(failure))
                continue
            self._unread.pop(index, None)
            self._cards[index] = card
            if self._events is None:
                continue
            try:
                kinds = pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(card.handle, kinds, self._events)
            except pynvml.NVMLError as failure:
                self._without_xids[index] = CardProblem(index, card.name, str(failure), card.uuid)

    def _card(self, index: int) -> _Card:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return _Card(
            handle=handle,
            uuid=GpuUuid(text(pynvml.nvmlDeviceGetUUID(handle))),
            name=text(pynvml.nvmlDeviceGetName(handle)),
            sm_count=optional(lambda: _sm_count(handle)),
            pci_bus_id=optional(lambda: text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
            numa_node=optional(lambda: nearest_numa_node(handle)),
            profiler=optional(lambda: Profiler.of(handle)),
            architecture=optional(
                lambda: _named("NVML_DEVICE_ARCH_", pynvml.nvmlDeviceGetArchitecture(handle))
            ),
            brand=optional(lambda: _named("NVML_BRAND_", pynvml.nvmlDeviceGetBrand(handle))),
            compute_capability=optional(
                lambda: ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle)))
            ),
            sampled_us=time.time_ns() // 1000 - 1_000_000,
        )

    def _gpu(self, index: int, card: _Card, now: bool) -> GpuReading:
        handle = card.handle
        try:
            total, used, reserved = _memory(handle)
        except pynvml.NVMLError as failure:
            return GpuReading(card.uuid, index, card.name, Bytes(0), error=str(failure))
        rates = self._value(card, "rates", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        power_mw = self._value(card, "power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        celsius = self._value(
            card,
            "temperature",
            lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        )
        clock = self._value(card, "sm_clock", lambda: _clock(handle, pynvml.NVML_CLOCK_SM))
        if now or self._now_s() - card.slow_at_s >= SLOW_EVERY_S:
            before = card.slow.get("mig")
            card.slow = self._slow(card)
            if (before is None) != (card.slow["mig"] is None):
                card.unsupported.clear()  # Many values exist in one mode only.
            card.slow_at_s = self._now_s()
        recovery = self._value(card, "recovery", lambda: nvml_fields.recovery_action(handle))
        return GpuReading(
            uuid=card.uuid,
            index=index,
            name=card.name,
            memory_total_bytes=Bytes(total),
            memory_used_bytes=Bytes(used),
            memory_reserved_bytes=None if reserved is None else Bytes(reserved),
            sm_count=card.sm_count,
            pci_bus_id=card.pci_bus_id,
            numa_node=card.numa_node,
            utilization_ratio=None if rates is None else rates.gpu / 100,
            memory_utilization_ratio=None if rates is None else rates.memory / 100,
            temperature_celsius=celsius,
            power_watts=None if power_mw is None else power_mw / 1000,
            sm_clock_hz=clock,
            throttle_reasons=self._value(card, "throttle", lambda: _throttle(handle)),
            processes=self._processes(card),
            recovery_action=None if recovery is None else RECOVERY_ACTIONS.get(recovery, "unknown"),
            profile=None if card.profiler is None else card.profiler.read(),
            architecture=card.architecture,
            brand=card.brand,
            compute_capability=card.compute_capability,
            **card.slow,
        )

    def _slow(self, card: _Card) -> dict[str, Any]:
        handle = card.handle
        limit_mw = self._value(
            card, "limit", lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        )
        return {
            **nvml_fields.counters(handle),
            "power_limit_watts": None if limit_mw is None else limit_mw / 1000,
            "memory_clock_hz": self._value(
                card, "memory_clock", lambda: _clock(handle, pynvml.NVML_CLOCK_MEM)
            ),
            "encoder_ratio": self._value(
                card, "encoder", lambda: pynvml.nvmlDeviceGetEncoderUtilization(handle)[0] / 100
            ),
            "decoder_ratio": self._value(
                card, "decoder", lambda: pynvml.nvmlDeviceGetDecoderUtilization(handle)[0] / 100
            ),
            "nvlinks_active": self._value(card, "links", lambda: _links(handle)),
            "nvlink_peers": self._value(card, "peers", lambda: _peers(handle)),
            "vgpu_licensed": self._value(card, "licence", lambda: _licensed(handle)),
            "mig": self._value(card, "mig", lambda: _mig(handle)),
            "graphics": self._graphics(card),
        }

    def _value(self, card: _Card, name: str, read: Callable[[], T]) -> T | None:
        """The value, or None if it cannot be read. A value that this card does not support is not
        requested again."""
        if name in card.unsupported:
            return None
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value in NEVER_AGAIN:
                card.unsupported.add(name)
            return None
        except (MISMATCH, AttributeError, OSError, ValueError):
            return None

    def _processes(self, card: _Card) -> tuple[ProcessReading, ...]:
        handle = card.handle
        # Drivers before 510 have version 2 only, and the unversioned name fails with them.
        running = (
            self._value(card, "v3", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
            or self._value(
                card, "v2", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
            )
            or []
        )
        held = {p.pid: p for p in running}
        since = card.sampled_us
        samples = (
            self._value(
                card, "samples", lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since)
            )
            or []
        )
        # NVML returns its last samples; the latest one per process counts.
        latest: dict[int, Any] = {}
        for sample in samples:
            if sample.timeStamp > getattr(latest.get(sample.pid), "timeStamp", 0):
                latest[sample.pid] = sample
            card.sampled_us = max(card.sampled_us, sample.timeStamp)
        drawing = {one.pid for one in card.slow["graphics"]}
        return tuple(
            _process(pid, held.get(pid), latest.get(pid))
            for pid in sorted(held.keys() | (latest.keys() - drawing))
        )

    def _graphics(self, card: _Card) -> tuple[ProcessReading, ...]:
        """Processes with a graphics context and none for compute."""
        handle = card.handle
        drawing = self._value(
            card, "graphics", lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)
        )
        computing = self._value(
            card, "v3", lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        )
        both = {one.pid for one in computing or ()}
        return tuple(_process(one.pid, one, None) for one in drawing or () if one.pid not in both)

    def _xids(self) -> list[tuple[GpuUuid, int]]:
        found: list[tuple[GpuUuid, int]] = []
        if self._events is None:
            return found
        self._wait_failed = ""
        for _ in range(MAX_XIDS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as failure:
                # Without a registered card, NVML refuses to wait.
                if failure.value != pynvml.NVML_ERROR_TIMEOUT and (
                    len(self._without_xids) < len(self._cards)
                ):
                    self._wait_failed = str(failure)
                break
            uuid = optional(lambda e=event: text(pynvml.nvmlDeviceGetUUID(e.device)))  # type: ignore[misc]  # bound now
            if uuid is not None:
                found.append((GpuUuid(uuid), int(event.eventData)))
        return found


def _process(pid: int, held: Any, sample: Any) -> ProcessReading:
    """`held` has the process's memory; a CUDA process has contexts on one MIG instance at most."""
    used = None if held is None else held.usedGpuMemory
    return ProcessReading(
        pid=pid,
        memory_bytes=None if used is None else Bytes(used),
        sm_ratio=None if sample is None else min(100, sample.smUtil) / 100,
        memory_ratio=None if sample is None else min(100, sample.memUtil) / 100,
        encoder_ratio=None if sample is None else min(100, sample.encUtil) / 100,
        decoder_ratio=None if sample is None else min(100, sample.decUtil) / 100,
        gpu_instance=_instance(held, "gpuInstanceId"),
        compute_instance=_instance(held, "computeInstanceId"),
    )


def _instance(held: Any, name: str) -> int | None:
    number = getattr(held, name, NO_INSTANCE)
    return None if number in (None, NO_INSTANCE) else int(number)


def _memory(handle: Any) -> tuple[int, int, int | None]:
    """Memory that programs can have, that they have, and the driver's own part, in bytes. Version 1
    of the call counts the driver's part as used; drivers before 510 have no other."""
    read = pynvml.nvmlDeviceGetMemoryInfo
    exact = optional(lambda: read(handle, version=pynvml.nvmlMemory_v2))
    if exact is not None:
        return exact.total - exact.reserved, exact.used, exact.reserved
    memory = read(handle)
    return memory.total, memory.used, None


def _clock(handle: Any, which: int) -> int:
    return int(pynvml.nvmlDeviceGetClockInfo(handle, which)) * 1_000_000


def _throttle(handle: Any) -> tuple[str, ...]:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            # Drivers before 535 have the old name.
            raise
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return tuple(sorted(name for bit, name in THROTTLE_REASONS.items() if bits & bit))


def _links(handle: Any) -> int:
    active = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT and link:
                # There are no more links.
                break
            raise
    return active


def _peers(handle: Any) -> dict[str, int]:
    found: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
            kind = optional(lambda n=link: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, n))  # type: ignore[misc]  # bound now
            if kind == TO_SWITCH:
                found[SWITCH] += 1
            else:
                found[text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)] += 1
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT and link:
                # There are no more links.
                break
            raise
    return dict(found)


def _licensed(handle: Any) -> bool:
    features = pynvml.nvmlDeviceGetGridLicensableFeatures_v4(handle)
    count = features.licensableFeaturesCount if features.isGridLicenseSupported else 0
    return any(features.gridLicensableFeatures[i].featureState for i in range(count))


def _mig(handle: Any) -> tuple[MigReading, ...] | None:
    current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return None
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # Indexes may have gaps.
                continue
            raise
        memory = optional(lambda d=device: pynvml.nvmlDeviceGetMemoryInfo(d))  # type: ignore[misc]  # bound now
        number = _number(pynvml.nvmlDeviceGetGpuInstanceId(device))
        place = optional(lambda n=number: _place(handle, n))  # type: ignore[misc]  # bound now
        found.append(
            MigReading(
                uuid=GpuUuid(text(pynvml.nvmlDeviceGetUUID(device))),
                profile=text(pynvml.nvmlDeviceGetName(device)).rpartition("MIG ")[2],
                gpu_instance=number,
                compute_instance=_number(pynvml.nvmlDeviceGetComputeInstanceId(device)),
                memory_total_bytes=None if memory is None else Bytes(memory.total),
                memory_used_bytes=None if memory is None else Bytes(memory.used),
                slice_start=None if place is None else place[0],
                slices=None if place is None else place[1],
            )
        )
    return tuple(found)


def _place(handle: Any, gpu_instance: int) -> tuple[int, int]:
    found = pynvml.nvmlDeviceGetGpuInstanceById(handle, gpu_instance)
    placement = pynvml.nvmlGpuInstanceGetInfo(found).placement
    return int(placement.start), int(placement.size)


def _number(value: Any) -> int:
    """The number itself: some functions of pynvml return the ctypes object."""
    return int(getattr(value, "value", value))


def _cuda(number: int) -> str:
    """CUDA's version as text; 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _named(prefix: str, number: Any) -> str | None:
    """The name of the constant with NVML's number, as NVIDIA writes it (Hopper); None if the number
    is newer than this binding."""
    for name in dir(pynvml):
        if name.startswith(prefix) and getattr(pynvml, name) == number:
            plain = name.removeprefix(prefix).replace("_", " ").title()
            return None if plain in ("Unknown", "Count") else plain
    return None


def text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _sm_count(handle: Any) -> int:
    """Multiprocessors of a card: NVML reports them for a part of a card (MIG), and cores for a
    whole one."""
    with contextlib.suppress(pynvml.NVMLError):
        return int(pynvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
    cores = int(pynvml.nvmlDeviceGetNumGpuCores(handle))
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return cores // cores_per_sm(capability)


def cores_per_sm(capability: tuple[int, ...]) -> int:
    """Cores per multiprocessor, from the tables of NVIDIA's programming guide, "arithmetic
    instructions": results of float32 additions per clock and multiprocessor."""
    return 64 if capability < (8, 6) and capability != (6, 1) else 128


def optional(read: Callable[[], T]) -> T | None:
    """The value, or None if NVML has none: many cards and drivers lack many fields."""
    try:
        return read()
    except (pynvml.NVMLError, MISMATCH, AttributeError, OSError):
        return None
