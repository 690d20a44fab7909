"""Creates and destroys MIG instances through NVML, in the process that makes the calls.

A change is all or nothing as far as the driver allows: instances that were destroyed are created
again in their places when a new one cannot be created. Nothing is changed while a process has a
context. No card is ever reset from here: before Hopper the driver may require a reset, which is
then reported.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.sweep import NO_INSTANCE, optional, text
from nodeagent.core.gpus.mig_geometry import GeometryError, geometry, is_cut_so, plan
from nodeagent.ports.mig import (
    MigDevice,
    MigInstance,
    MigOutcome,
    MigPlace,
    MigProcess,
    MigProfile,
    MigState,
    Span,
)
from nodeagent.units import MIB, Bytes, GpuUuid

SHARED: Final = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only one."""
ABSENT: Final = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT})
"""Errors for a profile that a card does not have."""


class Cutter:
    def __init__(self, library: str | None) -> None:
        """Raises pynvml.NVMLError or OSError."""
        if library:
            pynvml.nvmlLib = ctypes.CDLL(library)
        pynvml.nvmlInit()

    # --- reading ---

    def states(self) -> tuple[MigState, ...]:
        """The MIG state of each card. A card that cannot be read is reported so and does not hide
        the others. Raises pynvml.NVMLError."""
        handles = [
            (index, optional(lambda i=index: pynvml.nvmlDeviceGetHandleByIndex(i)))  # type: ignore[misc]  # bound now
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return tuple(_readable(handle, index) for index, handle in handles if handle is not None)

    def _read(self, gpu: GpuUuid) -> MigState:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        return _state(handle, int(pynvml.nvmlDeviceGetIndex(handle)))

    # --- changing ---

    def change(self, gpu: GpuUuid, wanted: tuple[str, ...] | None) -> MigOutcome:
        """Change a card to these profiles; None switches MIG off. Raises pynvml.NVMLError only
        before anything was changed."""
        before = self._read(gpu)
        if is_cut_so(before, wanted):
            return MigOutcome(before, before)
        if before.processes:
            who = ", ".join(f"{one.name} (pid {one.pid})" for one in before.processes)
            return MigOutcome(before, before, f"in use by {who}")
        try:
            plan(before.profiles, wanted or ())
        except GeometryError as error:
            return MigOutcome(before, before, str(error))
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        return _Change(handle, before, lambda: self._read(gpu)).run(wanted)

    def edit(self, gpu: GpuUuid, remove: tuple[MigPlace, ...], make: MigPlace | None) -> MigOutcome:
        """Destroy and create single instances and leave the others alone. An instance that was
        destroyed is not restored, because it was unused. Raises pynvml.NVMLError only before
        anything was changed."""
        before = self._read(gpu)
        going = [one for one in before.instances if one.place in remove]
        numbers = {one.gpu_instance for one in going}
        # A process for which the driver names no instance may use any of them.
        users = [p for p in before.processes if p.gpu_instance in (*numbers, None)]
        if going and users:
            who = ", ".join(f"{one.name} (pid {one.pid})" for one in users)
            return MigOutcome(before, before, f"{going[0].place} is in use by {who}")
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        return _Change(handle, before, lambda: self._read(gpu)).edit(going, make)


class _Change:
    """One change of one card, whose completed steps can be undone."""

    def __init__(self, handle: Any, before: MigState, read: Callable[[], MigState]) -> None:
        self._handle = handle
        self._before = before
        self._read = read
        self._destroyed: list[MigInstance] = []
        self._made: list[Any] = []
        self._switched = False

    def run(self, wanted: tuple[str, ...] | None) -> MigOutcome:
        doing = "nothing was changed"
        try:
            for instance in self._before.instances:
                doing = f"{instance.profile} at {instance.span} cannot be destroyed"
                self._destroy(instance)
            doing = f"MIG mode cannot be set {'off' if wanted is None else 'on'}"
            if not self._switch(wanted is not None):
                return self._end(reset_needed=True)
            if wanted:
                # Only with MIG on does the driver report possible placements.
                for place in plan(_profiles(self._handle), wanted):
                    doing = f"{place.profile} at {place.span} cannot be made"
                    self._make(place)
            after = self._read()
            if not is_cut_so(after, wanted):
                return self._failed(f"the driver reports another geometry: {geometry(after)}")
            return self._end()
        except pynvml.NVMLError as error:
            return self._failed(f"{doing}: {reason_of(error)}")
        except (GeometryError, InUse) as error:
            return self._failed(str(error))

    def edit(self, going: Iterable[MigInstance], make: MigPlace | None) -> MigOutcome:
        doing = "nothing was changed"
        try:
            for instance in going:
                doing = f"{instance.place} cannot be destroyed"
                self._destroy(instance)
            if make is not None:
                doing = f"{make} cannot be made"
                there = [one for one in self._before.instances if one.place == make]
                if not there:
                    self._make(make)
                elif not there[0].devices:
                    self._finish(there[0])
            return self._end()
        except pynvml.NVMLError as error:
            why = f"{doing}: {reason_of(error)}"
        # An instance without a compute instance takes memory and cannot be used.
        for one in self._made:
            with contextlib.suppress(pynvml.NVMLError):
                _unmake(one)
        return self._end(why)

    # --- steps ---

    def _destroy(self, instance: MigInstance) -> None:
        found = pynvml.nvmlDeviceGetGpuInstanceById(self._handle, instance.gpu_instance)
        self._destroyed.append(instance)  # Parts of it may be destroyed if this fails.
        _unmake(found)

    def _switch(self, on: bool) -> bool:
        """Switch MIG mode. Returns False if that takes effect at the card's next reset."""
        current, pending = pynvml.nvmlDeviceGetMigMode(self._handle)
        if bool(current) == on and bool(pending) == on:
            return True
        self._switched = True
        activation = self._set_mode(int(on))
        current, _pending = pynvml.nvmlDeviceGetMigMode(self._handle)
        if bool(current) == on:
            return True
        if activation in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_RESET_REQUIRED):
            return False
        reason = reason_of(pynvml.NVMLError(activation))
        raise InUse(f"MIG mode cannot be set {'on' if on else 'off'}: {reason}")

    def _set_mode(self, mode: int) -> int:
        """Set the mode and return the NVML error number of its activation. The driver may unbind or
        reset the card for it, so handles have to be requested again (NVML's reference,
        nvmlDeviceSetMigMode)."""
        activation = int(pynvml.nvmlDeviceSetMigMode(self._handle, mode))
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._before.gpu.encode())
        return activation

    def _make(self, place: MigPlace) -> None:
        profile = next(one for one in _profiles(self._handle) if one.name == place.profile)
        where = pynvml.c_nvmlGpuInstancePlacement_t(place.span.start, place.span.size)
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            self._handle, profile.profile_id, ctypes.byref(where)
        )
        self._made.append(instance)
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, _whole(instance, profile.slices))

    def _finish(self, instance: MigInstance) -> None:
        """Create the compute instance that is missing because the process that made the instance
        was killed."""
        found = pynvml.nvmlDeviceGetGpuInstanceById(self._handle, instance.gpu_instance)
        slices = next(p.slices for p in self._before.profiles if p.name == instance.profile)
        pynvml.nvmlGpuInstanceCreateComputeInstance(found, _whole(found, slices))

    def _restore(self, instance: MigInstance) -> None:
        """Create an instance again, or those parts of it that are missing."""
        number, span = instance.gpu_instance, instance.span
        found = optional(lambda: pynvml.nvmlDeviceGetGpuInstanceById(self._handle, number))
        if found is None:
            where = pynvml.c_nvmlGpuInstancePlacement_t(span.start, span.size)
            found = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                self._handle, instance.profile_id, ctypes.byref(where)
            )
        there = len(_compute_instances(found))
        for device in instance.devices[there:]:
            pynvml.nvmlGpuInstanceCreateComputeInstance(found, device.profile_id)

    # --- the end ---

    def _end(self, error: str = "", reset_needed: bool = False) -> MigOutcome:
        try:
            after = self._read()
        except pynvml.NVMLError as failure:
            earlier = f"{error}; " if error else ""
            return MigOutcome(
                self._before, None, f"{earlier}the card cannot be read any more: {failure}"
            )
        rolled_back = bool(error) and _shape(after) == _shape(self._before)
        return MigOutcome(self._before, after, error, rolled_back, reset_needed)

    def _failed(self, why: str) -> MigOutcome:
        """Undo all steps as far as possible: a step that fails does not keep the others from being
        tried."""
        mode = int(self._before.pending)
        undo: list[Callable[[], object]] = [
            *(partial(_unmake, one) for one in reversed(self._made)),
            *([partial(self._set_mode, mode)] if self._switched else []),
            *(partial(self._restore, one) for one in self._destroyed),
        ]
        failures = []
        for step in undo:
            try:
                step()
            except pynvml.NVMLError as error:
                failures.append(reason_of(error))
        if failures:
            why += f"; undoing it failed too: {', '.join(dict.fromkeys(failures))}"
        return self._end(why)


class InUse(Exception):
    """The driver refused to change the mode; the text gives the reason."""


def _shape(state: MigState) -> Any:
    """The parts of a state that have to be equal for a change to count as undone; numbers may
    differ."""
    return (
        state.enabled,
        state.pending,
        sorted((one.profile, one.span, len(one.devices)) for one in state.instances),
    )


def _unmake(instance: Any) -> None:
    for one in _compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(one)
    pynvml.nvmlGpuInstanceDestroy(instance)


def reason_of(error: Any) -> str:
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return "permission denied by the driver: run the daemon as root"
    if error.value == pynvml.NVML_ERROR_IN_USE:
        return (
            "the driver reports it in use: a program holds it without a context, such as DCGM, its"
            " exporter or another device plugin; stop that program for the change"
        )
    return str(error)


# --- reading NVML ---


def _readable(handle: Any, index: int) -> MigState:
    try:
        return _state(handle, index)
    except pynvml.NVMLError as error:
        uuid = optional(lambda: text(pynvml.nvmlDeviceGetUUID(handle)))
        name = optional(lambda: text(pynvml.nvmlDeviceGetName(handle)))
        return MigState(
            GpuUuid(uuid or ""), index, name or "a GPU", supported=False, error=reason_of(error)
        )


def _state(handle: Any, index: int) -> MigState:
    gpu = GpuUuid(text(pynvml.nvmlDeviceGetUUID(handle)))
    name = text(pynvml.nvmlDeviceGetName(handle))
    mode = optional(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mode is None:
        return MigState(gpu, index, name, supported=False)
    enabled, pending = bool(mode[0]), bool(mode[1])
    profiles = _profiles(handle)
    return MigState(
        gpu,
        index,
        name,
        True,
        enabled,
        pending,
        profiles,
        tuple(_instances(handle, profiles)) if enabled else (),
        tuple(_processes(handle)),
    )


def _profiles(handle: Any) -> tuple[MigProfile, ...]:
    found = []
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index)
        except pynvml.NVMLError as error:
            if error.value in ABSENT:
                continue
            raise
        found.append(
            MigProfile(
                name=text(info.name).removeprefix("MIG "),
                profile_id=int(info.id),
                slices=int(info.sliceCount),
                most=int(info.instanceCount),
                memory_bytes=Bytes(int(info.memorySizeMB) * MIB),
                spans=_spans(handle, int(info.id)),
                fits=optional(
                    lambda i=info: int(
                        pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, i.id)
                    )  # type: ignore[misc]  # bound now
                ),
            )
        )
    return tuple(sorted(found, key=lambda one: (one.slices, one.memory_bytes, one.name)))


def _spans(handle: Any, profile_id: int) -> tuple[Span, ...]:
    count = ctypes.c_uint(0)
    call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    if optional(lambda: call(handle, profile_id, None, ctypes.byref(count))) is None:
        return ()  # MIG is off
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(handle, profile_id, places, ctypes.byref(count))
    return tuple(sorted(Span(int(one.start), int(one.size)) for one in places[: count.value]))


def _instances(handle: Any, profiles: Iterable[MigProfile]) -> list[MigInstance]:
    uuids = _uuids(handle)
    found = []
    for profile in profiles:
        room = (pynvml.c_nvmlGpuInstance_t * profile.most)()
        count = ctypes.c_uint(profile.most)
        pynvml.nvmlDeviceGetGpuInstances(handle, profile.profile_id, room, ctypes.byref(count))
        for instance in list(room)[: count.value]:
            info = pynvml.nvmlGpuInstanceGetInfo(instance)
            number = int(info.id)
            devices = []
            for compute in _compute_instances(instance):
                one = pynvml.nvmlComputeInstanceGetInfo(compute)
                uuid = uuids.get((number, int(one.id)))
                if uuid is not None:
                    devices.append(MigDevice(uuid, int(one.id), int(one.profileId)))
            span = Span(int(info.placement.start), int(info.placement.size))
            found.append(
                MigInstance(number, profile.name, profile.profile_id, span, tuple(devices))
            )
    return sorted(found, key=lambda one: one.span)


def _uuids(handle: Any) -> dict[tuple[int, int], GpuUuid]:
    """UUIDs of the MIG devices, by GPU instance and compute instance."""
    found = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = optional(lambda i=index: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i))  # type: ignore[misc]  # bound now
        if device is not None:
            key = (
                _number(pynvml.nvmlDeviceGetGpuInstanceId(device)),
                _number(pynvml.nvmlDeviceGetComputeInstanceId(device)),
            )
            found[key] = GpuUuid(text(pynvml.nvmlDeviceGetUUID(device)))
    return found


def _number(value: Any) -> int:
    """The number itself: some functions of pynvml return the ctypes object."""
    return int(getattr(value, "value", value))


def _compute_profiles(instance: Any) -> list[Any]:
    call = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    every = range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
    infos = (optional(lambda i=index: call(instance, i, SHARED)) for index in every)  # type: ignore[misc]  # bound now
    return [info for info in infos if info is not None]


def _compute_instances(instance: Any) -> list[Any]:
    found = []
    for info in _compute_profiles(instance):
        room = (pynvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint(len(room))
        pynvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, room, ctypes.byref(count))
        found += list(room)[: count.value]
    return found


def _whole(instance: Any, slices: int) -> int:
    """The id of the compute profile that fills a GPU instance. Raises pynvml.NVMLError."""
    for info in _compute_profiles(instance):
        if info.sliceCount == slices:
            return int(info.id)
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _processes(handle: Any) -> list[MigProcess]:
    """Processes of every kind, on the card and all its instances. Raises pynvml.NVMLError, because
    processes that cannot be listed may exist."""
    found: dict[int, MigProcess] = {}
    for call in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ):
        try:
            processes = call(handle)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                # A card without graphics lists none.
                continue
            raise
        for one in processes:
            instance = getattr(one, "gpuInstanceId", NO_INSTANCE)
            found[one.pid] = MigProcess(
                int(one.pid),
                *_who(int(one.pid)),
                None if instance in (None, NO_INSTANCE) else int(instance),
            )
    return sorted(found.values(), key=lambda one: one.pid)


def _who(pid: int) -> tuple[str, int | None]:
    try:
        directory = Path(f"/proc/{pid}")
        name = (directory / "comm").read_text(errors="replace").strip()
        return "".join(c if c.isprintable() else "?" for c in name), directory.stat().st_uid
    except OSError:
        return "a process in another PID namespace", None
