"""Writes the first inputs of the corpora: good regions and near misses that a random search would hardly meet."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

from nodeagent.adapters import region_layout as c
from tests.interpose.regions import library

HERE = Path(__file__).parent / "corpus"


def page(devices: int = 2) -> c.Policy:
    draft, policy = c.Policy(), c.Policy()
    draft.header.device_count = devices
    for device in draft.dev[:devices]:
        device.memory_limit_bytes = 1 << 33
        device.share_ppm, device.plan_ppm = 500_000, 300_000
        device.burst_ns, device.inflight_ns, device.chunk_ns = 20_000_000, 4_000_000, 200_000
        device.lease_origin_ns, device.lease_period_ns = 3_000_000, 10_000_000
        device.lease_quantum_ns, device.turn_mode, device.active_grants = 4_000_000, 2, 2
    draft.driver_path[:5] = b"/x.so"
    assert library().sluice_policy_publish(ctypes.byref(policy), ctypes.byref(draft)) == 0
    return policy


def policies() -> dict[str, bytes]:
    def raw(policy: c.Policy) -> bytes:
        return struct.pack("<Q", 123_456_789) + bytes(policy)

    made = {"good": raw(page()), "sixteen": raw(page(16)), "short": raw(page())[:4096]}
    for name, field, value in (
        ("major", "major", 9),
        ("devices", "device_count", 17),
        ("slots", "slot_count", 0),
        ("bytes", "total_bytes", 0xFFFFFFFF),
    ):
        policy = page()
        setattr(policy.header, field, value)
        made[name] = raw(policy)
    odd = page()
    odd.control.seq = 7
    made["torn"] = raw(odd)
    wild = page()
    wild.dev[0].lease_period_ns = wild.dev[0].lease_quantum_ns = 2**64 - 1
    wild.dev[1].chunk_ns = wild.dev[1].burst_ns = 2**64 - 1
    wild.dev[1].share_ppm = 1
    made["wild"] = raw(wild)
    path = page()
    path.driver_path[:] = b"x" * len(path.driver_path)
    made["endless path"] = raw(path)
    return made


def region_programs() -> dict[str, bytes]:
    def record(what: int, offset: int, value: int) -> bytes:
        return struct.pack("<BIQ", what, offset, value)

    questions = [record(q << 2, 0, (3 << 32) | 1) for q in range(8)]
    high = c.Policy.control.offset // 8 + 5
    charged = c.Usage.slot.offset // 8 + 16
    return {
        "questions": b"".join(questions),
        "slots beyond the end": record(3, high, 0xFFFFFFFF_FFFFFFFF) + b"".join(questions),
        "a charge of everything": record(2, charged, 2**64 - 1) + b"".join(questions),
        "sums that wrap": b"".join(record(2, charged + 144 * i, 2**63) for i in range(3))
        + b"".join(questions),
    }


def settings() -> dict[str, bytes]:
    return {
        "usual": b"/run/sluice/grants/0b5a3c6e-1111-2222-3333-444455556666",
        "relative": b"run/sluice",
        "empty": b"",
        "longest": b"/" + b"a" * 254,
        "too long": b"/" + b"a" * 255,
        "inner nul": b"/run\0/evil",
        "dots": b"/../../..",
    }


def main() -> None:
    for target, made in (
        ("policy", policies()),
        ("region", region_programs()),
        ("settings", settings()),
    ):
        directory = HERE / target
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            (directory / name.replace(" ", "-")).write_bytes(data)


if __name__ == "__main__":
    main()
