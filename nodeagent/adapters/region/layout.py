"""proto/region.h and proto/register.h as ctypes structures, with the same names in the same order.

A test compares them field by field with the C compiler's layout.
"""

from __future__ import annotations

import ctypes
from typing import Final

from nodeagent.ports.regions import USAGE_FILE as USAGE_FILE

POLICY_MAGIC: Final = 0x3130594C4F504C53
USAGE_MAGIC: Final = 0x3130474153554C53
REGION_MAJOR: Final = 1

MAX_DEVICES: Final = 16
MAX_SLOTS: Final = 256
PATH_BYTES: Final = 512
POLICY_BYTES: Final = 12288
USAGE_BYTES: Final = 299008

POLICY_FILE: Final = "policy.shm"
SOCKET_FILE: Final = "register.sock"

FLAG_ENFORCE_MEMORY: Final = 1 << 0
FLAG_ENFORCE_SM: Final = 1 << 1
FLAG_PAUSED: Final = 1 << 2
FLAG_REVOKED: Final = 1 << 3
FLAG_MANAGED_BEYOND: Final = 1 << 4
FLAG_SPILLED: Final = 1 << 5

SLOT_COUNTS: Final = 1 << 31
SLOT_WAITING: Final = 0x0000FFFF

REGISTER_MAGIC: Final = 0x47525343
REGISTER_VERSION: Final = 1

_u8, _u16, _u32, _u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class PolicyHeader(ctypes.Structure):
    _fields_ = [
        ("magic", _u64),
        ("major", _u16),
        ("minor", _u16),
        ("header_bytes", _u32),
        ("total_bytes", _u32),
        ("device_count", _u32),
        ("slot_count", _u32),
        ("slot_bytes", _u32),
        ("grant_uuid", _u8 * 16),
        ("boot_id", _u8 * 16),
    ]


class PolicyControl(ctypes.Structure):
    _fields_ = [
        ("seq", _u32),
        ("live_slots", _u32),
        ("epoch", _u64),
        ("heartbeat_ns", _u64),
        ("lease_end_ns", _u64),
        ("slot_high", _u32),
        ("wake", _u32),
        ("reserved", _u8 * 24),
    ]


class PolicyDevice(ctypes.Structure):
    _fields_ = [
        ("memory_limit_bytes", _u64),
        ("physical_bytes", _u64),
        ("burst_ns", _u64),
        ("inflight_ns", _u64),
        ("chunk_ns", _u64),
        ("share_ppm", _u32),
        ("flags", _u32),
        ("gpu_uuid", _u8 * 16),
        ("lease_origin_ns", _u64),
        ("lease_period_ns", _u64),
        ("lease_quantum_ns", _u64),
        ("contention_epoch", _u64),
        ("turn_mode", _u32),
        ("active_grants", _u32),
        ("plan_ppm", _u32),
        ("switch_ns", _u32),
        ("reserved", _u8 * 16),
    ]


class PolicyEntry(ctypes.Structure):
    _fields_ = [
        ("generation", _u64),
        ("starttime", _u64),
        ("host_pid", _u32),
        ("ns_pid", _u32),
        ("flags", _u32),
        ("reserved", _u32),
    ]


class Policy(ctypes.Structure):
    _fields_ = [
        ("header", PolicyHeader),
        ("control", PolicyControl),
        ("dev", PolicyDevice * MAX_DEVICES),
        ("driver_path", _u8 * PATH_BYTES),
        ("nvml_path", _u8 * PATH_BYTES),
        ("reserved", _u8 * 896),
        ("dir", PolicyEntry * MAX_SLOTS),
    ]


class UsageHeader(ctypes.Structure):
    _fields_ = [
        ("magic", _u64),
        ("major", _u16),
        ("minor", _u16),
        ("claim_high", _u32),
        ("reserved", _u8 * 48),
    ]


class UsageShared(ctypes.Structure):
    _fields_ = [("tat_ns", _u64), ("switch_ns", _u32), ("reserved", _u8 * 52)]


class UsageDevice(ctypes.Structure):
    _fields_ = [
        ("charged_bytes", _u64),
        ("consumed_ns", _u64),
        ("completed_ns", _u64),
        ("launches", _u64),
        ("allocs", _u64),
        ("denied", _u64),
        ("peak_bytes", _u64),
        ("throttled_ns", _u64),
    ]


class UsageSlot(ctypes.Structure):
    _fields_ = [
        ("generation_seen", _u64),
        ("heartbeat_ns", _u64),
        ("hook_mask", _u64),
        ("unknown_symbols", _u64),
        ("ns_pid", _u32),
        ("status", _u32),
        ("unknown_tables", _u64),
        ("process", _u64),
        ("image", _u64),
        ("self_claim", _u64),
        ("claim_starttime", _u64),
        ("failed_records", _u64),
        ("reserved1", _u8 * 40),
        ("dev", UsageDevice * MAX_DEVICES),
    ]


class Usage(ctypes.Structure):
    _fields_ = [
        ("header", UsageHeader),
        ("shared", UsageShared * MAX_DEVICES),
        ("reserved", _u8 * 3008),
        ("slot", UsageSlot * MAX_SLOTS),
    ]


class RegisterRequest(ctypes.Structure):
    _fields_ = [
        ("magic", _u32),
        ("version", _u16),
        ("region_major", _u16),
        ("ns_pid", _u32),
        ("claimed_slot", _u32),
        ("hook_mask", _u64),
    ]


class RegisterReply(ctypes.Structure):
    _fields_ = [
        ("magic", _u32),
        ("version", _u16),
        ("error", _u16),
        ("slot", _u32),
        ("reserved", _u32),
        ("generation", _u64),
    ]


STRUCTURES: Final = {
    "sluice_policy_header": PolicyHeader,
    "sluice_policy_control": PolicyControl,
    "sluice_policy_device": PolicyDevice,
    "sluice_policy_entry": PolicyEntry,
    "sluice_policy": Policy,
    "sluice_usage_header": UsageHeader,
    "sluice_usage_shared": UsageShared,
    "sluice_usage_device": UsageDevice,
    "sluice_usage_slot": UsageSlot,
    "sluice_usage": Usage,
    "sluice_register_request": RegisterRequest,
    "sluice_register_reply": RegisterReply,
}

assert ctypes.sizeof(Policy) == POLICY_BYTES
assert ctypes.sizeof(Usage) == USAGE_BYTES
