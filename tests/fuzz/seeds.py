"""Adds the first inputs to the corpora: good regions and near misses that a random search would hardly meet."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping

from nodeagent.adapters.region import layout as c
from tests.fuzz import corpus
from tests.interpose.regions import library


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


def registrations() -> dict[str, bytes]:
    """The first byte: 0 /proc/self/stat, 1 the boot's id, 2 the handshake."""

    def packet(data: bytes) -> bytes:
        return bytes([len(data)]) + data

    def reply(**fields: int) -> bytes:
        good = {"magic": c.REGISTER_MAGIC, "version": 1, "slot": 3, "generation": 5}
        return packet(bytes(c.RegisterReply(**(good | fields))))

    stat = b"7 (a) b) c) R 1 " + b" ".join(b"%d" % i for i in range(5, 23)) + b" 0 0\n"
    return {
        "stat": b"\0" + stat,
        "stat without an end": b"\0" + stat[:30],
        "boot id": b"\1" + b"6a5a9f26-1e0e-4c2b-9d0e-0123456789ab\n",
        "boot id, too short": b"\1" + b"6a5a9f26-1e0e",
        "welcome": b"\2\0" + reply(),
        "welcome, late": b"\2\xff\xff\0" + b"\xff\xfe" * 3 + reply(),
        "never": b"\2\0" + b"\xff" * 100,
        "refused": b"\2\0" + reply(error=1),
        "a slot beyond the end": b"\2\0" + reply(slot=256),
        "an even generation": b"\2\0" + reply(generation=4),
        "half an answer": b"\2\0" + packet(bytes(11)),
        "more than an answer": b"\2\0" + packet(reply()[1:] + b"more"),
        "another version": b"\2\0" + reply(version=2),
        "hung up": b"\2\0\0",
        "nobody there": b"\2\xfd",
    }


def hooks() -> dict[str, bytes]:
    """The first byte: even JSON, odd a list of libraries."""
    state = b'{"ociVersion":"1.2.0","id":"c","pid":7,"bundle":"/run/c\\u0031"}'
    config = (
        b'{"process":{"args":["a\\"}"]},"root" : {"readonly":true, "path":"root\\u00e9\\ud83d\\ude00"},'
        b'"linux":{"mountLabel":"system_u:object_r:container_file_t:s0:c1,c2"}}'
    )
    ours = b"/run/sluice/lib/libsluice.so"
    return {
        "state": b"\0" + state,
        "config": b"\0" + config,
        "text": b'\0"\\b\\f\\n\\/\\\\"',
        "half a pair": b'\0{"bundle":"\\ud83d"}',
        "not closed": b'\0{"bundle":"\\',
        "deep": b"\0" + b'{"a":[' * 50 + b'],"bundle":"/x"}' * 50,
        "list": b"\1/a/b.so /c.so\n/d.so:/e.so",
        "ours": b"\1" + ours + b"\n" + ours + b"x:" + ours,
        "comments": b"\1# all\n/a.so#" + ours + b"\n/b.so # c\n#",
        "empty": b"\1",
        "inner nul": b"\1/a.so\0/b.so",
    }


def siblings() -> dict[str, bytes]:
    def look(step_ns: int, *readings: tuple[int, int, int]) -> bytes:
        return struct.pack("<Q", step_ns) + b"".join(struct.pack("<3Q", *one) for one in readings)

    ms = 1_000_000
    even = [look(ms, (i * ms, i * ms, 0), (i * ms, i * ms, i * ms)) for i in range(20)]
    ahead = [look(ms, (9 * i * ms, i * ms, 0), (i * ms, i * ms, i * ms)) for i in range(20)]
    most = 2**64 - 1
    wild = [look(ms, (most, 0, most), (0, most, 0)), look(ms, (0, most, 0), (most, 0, most))]
    return {
        "even": b"\1\0" + b"".join(even),
        "ahead": b"\1\0" + b"".join(ahead),
        "wild": b"\1\1" + b"".join(wild) * 8,
        "alone": b"\0\0" + b"".join(look(ms, (i, i, i)) for i in range(8)),
        "eight": b"\7\3" + b"".join(look(300 * ms, *[(i * ms, 0, i)] * 8) for i in range(8)),
    }


MADE: Mapping[str, Callable[[], dict[str, bytes]]] = {
    "hook": hooks,
    "policy": policies,
    "region": region_programs,
    "registration": registrations,
    "settings": settings,
    "siblings": siblings,
}
"""Functions that make the first inputs by name, by target."""


def main() -> None:
    for target, make in MADE.items():
        corpus.write(target, [*corpus.read(target), *make().values()])


if __name__ == "__main__":
    main()
