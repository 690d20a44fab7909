"""A grant's region on tmpfs, written through libsluice_region.so, because Python has no release
store.

The daemon maps policy.shm, which no other process can write or shrink, and only ever calls `pread`
on usage.shm: a tenant that truncates it harms itself only (a mapping would raise SIGBUS in the
daemon). As root every grant has its own tmpfs, sized for its two files, so that a tenant cannot
fill another's; otherwise a plain directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import mmap
import os
import re
import shutil
import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent.adapters.host import beneath
from nodeagent.adapters.region import layout as c
from nodeagent.adapters.region.mounts import MS_NODEV, MS_NOEXEC, MS_NOSUID, RegionMounts
from nodeagent.ports.ledger import GrantRecord
from nodeagent.ports.processes import Process
from nodeagent.ports.regions import (
    DeviceCounters,
    DeviceLimits,
    DeviceTurn,
    Region,
    RegionDamaged,
    SlotClaimed,
    SlotOwner,
    SlotUsage,
    UsageDamage,
    UsageImage,
)
from nodeagent.units import MAX_SLOTS, GrantId, Nanoseconds, SlotIndex
from sluicecommon.plain import read_plain, write_all_fields

log = logging.getLogger(__name__)

RECORD_FILE: Final = "grant.json"
DIRECTORY_MODE: Final = 0o711
"""Mode of regions and the directory above them: other users can list neither, and would
have to guess a grant's identifier, which is random."""
MOUNT_OPTIONS: Final = "size=320k,nr_inodes=6,mode=0711"
"""76 pages for the two files and one for the record; inodes for the root, four files and one to
rename from."""

_SLOT_BYTES: Final = ctypes.sizeof(c.UsageSlot)
_SLOTS_AT: Final = c.Usage.slot.offset
_CLAIM_AT: Final = c.UsageSlot.self_claim.offset
_FAILED_AT: Final = c.UsageSlot.failed_records.offset
_IMAGE_AT: Final = c.UsageSlot.image.offset
_SHARED_AT: Final = c.Usage.shared.offset + c.UsageShared.switch_ns.offset
_SHARED_BYTES: Final = ctypes.sizeof(c.UsageShared)
_DEVICES_AT: Final = c.UsageSlot.dev.offset
_HEAD: Final = struct.Struct("=QHHI")  # The fields of sluice_usage_header up to claim_high.
_LINE0: Final = struct.Struct("=4QIIQ")
_CLAIM: Final = struct.Struct("=QQ")
_FAILED: Final = struct.Struct("=Q")
_IMAGE: Final = struct.Struct("=Q")
_SWITCH: Final = struct.Struct("=I")
_DEVICE: Final = struct.Struct("=8Q")
_GRANT_NAME: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RegionLibrary:
    """libsluice_region.so with its prototypes. Raises OSError if it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self._lib = ctypes.CDLL(str(path))
        policy, device = ctypes.POINTER(c.Policy), ctypes.POINTER(c.PolicyDevice)
        u32, u64 = ctypes.c_uint32, ctypes.c_uint64
        fallible: Mapping[str, list[Any]] = {
            "sluice_policy_publish": [policy, policy],
            "sluice_policy_recover": [policy, policy],
            "sluice_policy_set_limits": [policy, u32, device],
            "sluice_policy_set_turn": [policy, u32, device, ctypes.c_bool],
            "sluice_policy_own_slot": [
                policy,
                u32,
                ctypes.POINTER(c.PolicyEntry),
                ctypes.POINTER(u64),
            ],
            "sluice_policy_free_slot": [policy, u32],
            "sluice_policy_check": [policy, ctypes.c_size_t, ctypes.c_char_p],
        }
        for name, arguments in fallible.items():
            function = getattr(self._lib, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        silent: Mapping[str, list[Any]] = {
            "sluice_policy_heartbeat": [policy, u64],
            "sluice_policy_set_population": [policy, u32, u32],
            "sluice_usage_format": [ctypes.POINTER(c.Usage)],
        }
        for name, arguments in silent.items():
            function = getattr(self._lib, name)
            function.argtypes, function.restype = arguments, None
        usage = c.Usage()
        self._lib.sluice_usage_format(ctypes.byref(usage))
        self.usage_header: Final = bytes(usage.header)
        """Initial contents of usage.shm."""
        self.heartbeat = self._lib.sluice_policy_heartbeat
        self.set_population = self._lib.sluice_policy_set_population

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises OSError with the negative errno that it returned."""
        result = getattr(self._lib, name)(*arguments)
        if result < 0:
            raise OSError(-result, f"{name}: {os.strerror(-result)}")


class TmpfsRegion:
    """One open region."""

    def __init__(self, library: RegionLibrary, directory: Path, devices: int) -> None:
        self._library = library
        self._path = directory
        self._devices = devices
        self._last: dict[SlotIndex, tuple[bytes, SlotUsage]] = {}
        """The last reading, as bytes and parsed."""
        fd = _open_policy(directory)
        try:
            self._map = mmap.mmap(fd, c.POLICY_BYTES)
        finally:
            os.close(fd)
        self._policy = c.Policy.from_buffer(self._map)
        self._ref = ctypes.byref(self._policy)
        with beneath.directory(directory) as root:
            self._usage = beneath.open_regular(root, c.USAGE_FILE, os.O_RDWR)

    @property
    def directory(self) -> str:
        return str(self._path)

    # --- limits and turns ---

    def publish(self, draft: c.Policy) -> None:
        self._library.call("sluice_policy_publish", self._ref, ctypes.byref(draft))

    def recover(self, draft: c.Policy, boot_id: bytes) -> None:
        """Read the limits from the page. Raises RegionDamaged if the page is not one of ours."""
        try:
            self._library.call("sluice_policy_check", self._ref, c.POLICY_BYTES, boot_id)
            self._library.call("sluice_policy_recover", self._ref, ctypes.byref(draft))
        except OSError as error:
            raise RegionDamaged(f"{self._path}: {error}") from error

    def set_limits(self, device: int, limits: DeviceLimits) -> None:
        line = _device_line(limits)
        self._library.call("sluice_policy_set_limits", self._ref, device, ctypes.byref(line))

    def set_turn(self, device: int, turn: DeviceTurn, wake: bool) -> None:
        line = c.PolicyDevice(
            lease_origin_ns=turn.lease_origin_ns,
            lease_period_ns=turn.lease_period_ns,
            lease_quantum_ns=turn.lease_quantum_ns,
            contention_epoch=turn.contention_epoch,
            turn_mode=turn.mode,
            active_grants=turn.active_grants,
            plan_ppm=turn.plan_ppm,
            switch_ns=turn.switch_ns,
        )
        self._library.call("sluice_policy_set_turn", self._ref, device, ctypes.byref(line), wake)

    def heartbeat(self, now_ns: Nanoseconds) -> None:
        self._library.heartbeat(self._ref, now_ns)

    def set_population(self, live_slots: int, slot_high: int) -> None:
        self._library.set_population(self._ref, live_slots, slot_high)

    # --- slots ---

    def own_slot(self, slot: SlotIndex, process: Process, adopted: bool = False) -> int:
        entry = c.PolicyEntry(
            starttime=process.starttime_ticks, host_pid=process.pid, ns_pid=process.ns_pid
        )
        generation = ctypes.c_uint64()
        self._library.call(
            "sluice_policy_own_slot",
            self._ref,
            slot,
            ctypes.byref(entry),
            ctypes.byref(generation),
        )
        if adopted:
            self._write(_slot_at(slot) + _CLAIM_AT, bytes(_CLAIM.size))
        else:
            # A tenant may have claimed the slot between our read and our store. The second of
            # the two withdraws: the tenant when it sees our generation, the daemon when it sees
            # the claim.
            claim = self._read(_slot_at(slot) + _CLAIM_AT, _CLAIM.size)
            if len(claim) == _CLAIM.size and _CLAIM.unpack(claim)[0]:
                self._library.call("sluice_policy_free_slot", self._ref, slot)
                raise SlotClaimed(slot)
        return generation.value

    def clear_slot(self, slot: SlotIndex) -> None:
        self._write(_slot_at(slot), bytes(_SLOT_BYTES))
        with contextlib.suppress(FileNotFoundError):  # It is free already.
            self._library.call("sluice_policy_free_slot", self._ref, slot)

    def owners(self) -> list[SlotOwner]:
        found = []
        for index in range(MAX_SLOTS):
            entry = self._policy.dir[index]
            if entry.generation & 1:
                found.append(
                    SlotOwner(
                        SlotIndex(index),
                        entry.generation,
                        entry.host_pid,
                        entry.starttime,
                        entry.ns_pid,
                    )
                )
        return found

    # --- usage ---

    def read_usage(self, slots: Sequence[SlotIndex]) -> UsageImage:
        if not slots:
            return UsageImage({})
        # Runs 200 times a second per grant on shared GPUs: two calls, and unchanged bytes are not
        # parsed again. lseek costs a tenth of fstat, and the file's offset is not used.
        if os.lseek(self._usage, 0, os.SEEK_END) != c.USAGE_BYTES:
            return UsageImage({}, damage=UsageDamage.TRUNCATED)
        size = _slot_at(max(slots) + 1)
        data = self._read(0, size)
        if len(data) < size:
            return UsageImage({}, damage=UsageDamage.TRUNCATED)
        magic, major, _minor, claim_high = _HEAD.unpack_from(data)
        if magic != c.USAGE_MAGIC or major != c.REGION_MAJOR:
            return UsageImage({}, damage=UsageDamage.HEADER)
        used = _DEVICES_AT + self._devices * _DEVICE.size
        last, self._last = self._last, {}
        for slot in slots:
            at = _slot_at(slot)
            raw = data[at : at + used]
            known = last.get(slot)
            same = known is not None and known[0] == raw
            self._last[slot] = known if known is not None and same else (raw, self._slot(raw))
        found = {slot: one for slot, (_raw, one) in self._last.items()}
        switches = tuple(
            _SWITCH.unpack_from(data, _SHARED_AT + i * _SHARED_BYTES)[0]
            for i in range(self._devices)
        )
        return UsageImage(found, min(claim_high, MAX_SLOTS), switches_ns=switches)

    def _slot(self, raw: bytes) -> SlotUsage:
        devices = tuple(
            DeviceCounters(*_DEVICE.unpack_from(raw, _DEVICES_AT + i * _DEVICE.size))
            for i in range(self._devices)
        )
        seen, beat, hooks, symbols, _pid, status, tables = _LINE0.unpack_from(raw)
        claim, starttime = _CLAIM.unpack_from(raw, _CLAIM_AT)
        (records,) = _FAILED.unpack_from(raw, _FAILED_AT)
        waiting = status & c.SLOT_WAITING if status & c.SLOT_COUNTS else None
        return SlotUsage(
            seen, beat, hooks, symbols, tables, records, claim, starttime, devices, waiting
        )

    def self_claims(self) -> dict[SlotIndex, tuple[int, int]]:
        head = self._read(0, _HEAD.size)
        if len(head) < _HEAD.size:
            return {}
        found = {}
        for index in range(min(_HEAD.unpack(head)[3], MAX_SLOTS)):
            slot = SlotIndex(index)
            raw = self._read(_slot_at(slot) + _CLAIM_AT, _CLAIM.size)
            claim, starttime = _CLAIM.unpack(raw) if len(raw) == _CLAIM.size else (0, 0)
            if claim:
                found[slot] = (claim >> 32, starttime)
        return found

    def image_in(self, slot: SlotIndex) -> int:
        raw = self._read(_slot_at(slot) + _IMAGE_AT, _IMAGE.size)
        image: int = _IMAGE.unpack(raw)[0] if len(raw) == _IMAGE.size else 0
        return image

    def drop_claim(self, slot: SlotIndex) -> None:
        self._write(_slot_at(slot), bytes(_SLOT_BYTES))

    def repair_usage(self) -> None:
        """Set the claim bound to the highest possible value, because a lower one could hide a live
        claim."""
        with contextlib.suppress(OSError):
            # The grant's own tmpfs is full, which harms its tenant only.
            if os.fstat(self._usage).st_size != c.USAGE_BYTES:
                os.ftruncate(self._usage, c.USAGE_BYTES)
                os.posix_fallocate(self._usage, 0, c.USAGE_BYTES)
        header = c.UsageHeader.from_buffer_copy(self._library.usage_header)
        header.claim_high = MAX_SLOTS
        self._write(0, bytes(header))

    def usage_file(self) -> tuple[int, int]:
        status = os.fstat(self._usage)
        return status.st_dev, status.st_ino

    def close(self) -> None:
        os.close(self._usage)
        del self._ref, self._policy
        with contextlib.suppress(BufferError):
            # A ctypes view may live until the next garbage collection.
            self._map.close()

    def _read(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._usage, size, at)
        except OSError:
            return b""

    def _write(self, at: int, data: bytes) -> None:
        # ENOSPC after a truncation: there is nothing to zero then.
        with contextlib.suppress(OSError):
            os.pwrite(self._usage, data, at)


class TmpfsRegions:
    """The RegionStore below `<runtime>/grants`."""

    def __init__(
        self, root: Path, library: RegionLibrary, boot_id: str, mounts: RegionMounts | None
    ) -> None:
        """`mounts` gives every grant a tmpfs of its own; None: all are directories on the tmpfs of
        `root`."""
        self._root = root
        self._closed_root = root.parent / "pods"
        """Directory of containers' regions: any user in the container may write its usage, so no
        other user of the host may reach it."""
        self._library = library
        self._boot_id = uuid.UUID(boot_id).bytes
        self._mounts = mounts
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.chmod(root, DIRECTORY_MODE)
        self._closed_root.mkdir(mode=0o700, exist_ok=True)
        os.chmod(self._closed_root, 0o700)

    def create(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region:
        directory = self._place(record.grant, record.container is not None)
        directory.mkdir(mode=DIRECTORY_MODE)
        try:
            if self._mounts is not None:
                self._mounts.mount(directory, MOUNT_OPTIONS, MS_NOSUID | MS_NODEV | MS_NOEXEC)
            self._make_files(directory, record)
            region = TmpfsRegion(self._library, directory, len(limits))
            region.publish(_draft(record, limits, self._boot_id))
        except BaseException:
            self.remove(record.grant)
            raise
        return region

    def open(self, record: GrantRecord, limits: Sequence[DeviceLimits]) -> Region:
        try:
            region = TmpfsRegion(self._library, self._found(record.grant), len(limits))
        except (OSError, ValueError) as error:
            raise RegionDamaged(f"{self._found(record.grant)}: {error}") from error
        region.recover(_draft(record, limits, self._boot_id), self._boot_id)
        return region

    def remove(self, grant: GrantId) -> None:
        if not _GRANT_NAME.fullmatch(grant):
            raise ValueError(f"{grant!r} is not a grant's directory")
        directory = self._found(grant)
        # An earlier daemon that could mount left a mount here.
        unmounts = self._mounts or RegionMounts()
        while unmounts.unmount(directory):
            pass
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def present(self) -> list[GrantId]:
        return [
            GrantId(entry.name)
            for root in (self._root, self._closed_root)
            for entry in os.scandir(root)
            if _GRANT_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]

    def read_record(self, grant: GrantId) -> GrantRecord | None:
        try:
            with beneath.directory(self._found(grant)) as root:
                text = beneath.read_beneath(root, RECORD_FILE)
            record: GrantRecord = read_plain(GrantRecord, json.loads(text))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        return record if record.grant == grant else None

    def write_record(self, record: GrantRecord) -> None:
        """Update the copy of the record beside the region. Best effort, because the ledger is
        authoritative."""
        directory = self._found(record.grant)
        if not directory.is_dir():
            return
        text = json.dumps(write_all_fields(record)).encode()
        try:
            with beneath.directory(directory) as root:
                beneath.replace_beneath(root, RECORD_FILE, text, 0o600)
        except OSError as error:
            log.warning("grant %s: the copy of its record is not updated: %s", record.grant, error)

    def _place(self, grant: str, closed: bool) -> Path:
        return (self._closed_root if closed else self._root) / grant

    def _found(self, grant: str) -> Path:
        """The region's directory; the one for non-containers if it does not exist."""
        closed = self._place(grant, closed=True)
        return closed if closed.is_dir() else self._place(grant, closed=False)

    def _make_files(self, directory: Path, record: GrantRecord) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        for name, size, mode in (
            (c.POLICY_FILE, c.POLICY_BYTES, 0o444),
            (c.USAGE_FILE, c.USAGE_BYTES, 0o600),
        ):
            with beneath.directory(directory) as root:
                fd = beneath.open_regular(root, name, flags, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)  # A later ENOSPC would be a SIGBUS in a tenant.
                os.fchmod(fd, mode)
                if name == c.USAGE_FILE:
                    os.pwrite(fd, self._library.usage_header, 0)
                    if record.container is not None:
                        os.fchmod(fd, 0o666)
                    elif os.geteuid() == 0:
                        os.fchown(fd, record.owner.uid, record.owner.gid)
            finally:
                os.close(fd)
        self.write_record(record)


def _slot_at(slot: int) -> int:
    return _SLOTS_AT + slot * _SLOT_BYTES


def _open_policy(directory: Path) -> int:
    path = directory / c.POLICY_FILE
    with beneath.directory(directory) as root:
        try:
            fd = beneath.open_regular(root, c.POLICY_FILE, os.O_RDWR)
        except PermissionError:
            # The mode is 0444 and this process is not root, but owns the file.
            os.chmod(path, 0o644)
            try:
                fd = beneath.open_regular(root, c.POLICY_FILE, os.O_RDWR)
            finally:
                os.chmod(path, 0o444)
    if os.fstat(fd).st_size != c.POLICY_BYTES:
        os.close(fd)
        raise OSError(errno.EBADMSG, f"{path} is not a policy page")
    return fd


def _draft(record: GrantRecord, limits: Sequence[DeviceLimits], boot_id: bytes) -> c.Policy:
    draft = c.Policy()
    draft.header.device_count = len(limits)
    draft.header.grant_uuid[:] = uuid.UUID(record.grant).bytes
    draft.header.boot_id[:] = boot_id
    for index, device in enumerate(limits):
        draft.dev[index] = _device_line(device)
    for field, path in (("driver_path", record.driver_path), ("nvml_path", record.nvml_path)):
        raw = os.fsencode(path)
        getattr(draft, field)[: len(raw)] = raw
    return draft


def _device_line(limits: DeviceLimits) -> c.PolicyDevice:
    flags = (
        c.FLAG_ENFORCE_MEMORY * limits.enforce_memory
        | c.FLAG_ENFORCE_SM * limits.enforce_sm
        | c.FLAG_PAUSED * limits.paused
        | c.FLAG_REVOKED * limits.revoked
        | c.FLAG_MANAGED_BEYOND * limits.managed_beyond
        | c.FLAG_SPILLED * limits.spilled
    )
    line = c.PolicyDevice(
        memory_limit_bytes=limits.memory_limit_bytes,
        physical_bytes=limits.physical_bytes,
        burst_ns=limits.burst_ns,
        inflight_ns=limits.inflight_ns,
        chunk_ns=limits.chunk_ns,
        share_ppm=limits.share_ppm,
        flags=flags,
    )
    line.gpu_uuid[:] = gpu_uuid_bytes(limits.gpu)
    return line


def gpu_uuid_bytes(gpu: str) -> bytes:
    """The 16 bytes CUDA reports for `GPU-<uuid>` (or `MIG-<uuid>`)."""
    return uuid.UUID(gpu.split("-", 1)[1]).bytes
