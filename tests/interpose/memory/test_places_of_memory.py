"""Memory by the place it is asked for: pools of a part of a device, of managed memory and of the host, and ordinary memory of
the host that a GPU could take (HMM, ATS)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpose import regions
from tests.interpose.regions import GIB, Region
from tests.interpose.simulated import Ask, ask, machine, region

__all__ = ["ask", "machine", "region"]

POOL = """
OTHERS = dict(device=(1, 1, 0), part=(1, 6, 0x100), managed=(2, 0, 0), host=(1, 2, 0), node=(1, 3, 0))
def pool(kind):
    type, location, id = OTHERS[kind]
    p, props = pointer(), Props()
    props.type, props.location = type, Location(location, id)
    r = cuda.cuMemPoolCreate(byref(p), byref(props))
    assert r == 0, r
    return p
def take(p, n):
    at = u64()
    return cuda.cuMemAllocFromPoolAsync(byref(at), size(n), p, None)
"""


@pytest.mark.parametrize("kind", ["device", "part", "managed"])
def test_a_pool_that_takes_memory_of_a_device_is_charged_and_stops_at_the_cap(
    ask: Ask, kind: str
) -> None:
    got = ask(
        POOL
        + f"""
p = pool({kind!r})
answer(first=take(p, 3 * GIB), held=charged(), second=take(p, 2 * GIB), after=charged())
"""
    )
    assert (got["first"], got["held"]) == (0, 3 * GIB)
    assert (got["second"], got["after"]) == (2, 3 * GIB)


@pytest.mark.parametrize("kind", ["host", "node"])
def test_a_pool_of_the_hosts_memory_costs_the_grant_nothing(ask: Ask, kind: str) -> None:
    got = ask(
        POOL + f"answer(r=take(pool({kind!r}), 6 * GIB), held=charged(), beside=plain(3 * GIB))",
    )
    assert (got["r"], got["held"], got["beside"]) == (0, 0, 0)


# --- ordinary memory of the host -------------------------------------------------------------------------------------

MOVES = """
init()
class Location(ctypes.Structure):
    _fields_ = [("type", i32), ("id", i32)]
page = ctypes.create_string_buffer(1 << 16)
heap, own, size = ctypes.addressof(page), alloc(1 << 20)[1], ctypes.c_size_t(4096)
DEVICE, HOST = Location(1, 0), Location(2, 0)
def batch(*addresses, to):
    n = len(addresses)
    return ((u64 * n)(*addresses), (ctypes.c_size_t * n)(*[4096] * n), ctypes.c_size_t(n), byref(to),
            (ctypes.c_size_t * 1)(0), ctypes.c_size_t(1), u64(0), None)
"""


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("cuMemPrefetchAsync, host's", True),
        ("cuMemPrefetchAsync, own", False),
        ("cuMemPrefetchAsync, back", False),
        ("cuMemPrefetchAsync_v2, host's", True),
        ("cuMemPrefetchAsync_v2, own", False),
        ("cuMemPrefetchAsync_v2, back", False),
        ("batch, own and host's", True),
        ("batch, own", False),
        ("advice of a place, host's", True),
        ("advice of another kind, host's", False),
    ],
)
def test_what_cuda_did_not_allocate_is_not_brought_to_the_gpu(
    tmp_path: Path, call: str, refused: bool
) -> None:
    region = Region(tmp_path / "grant", limits=(GIB,))
    calls = {
        "cuMemPrefetchAsync, host's": "cuda.cuMemPrefetchAsync(u64(heap), size, 0, None)",
        "cuMemPrefetchAsync, own": "cuda.cuMemPrefetchAsync(u64(own), size, 0, None)",
        "cuMemPrefetchAsync, back": "cuda.cuMemPrefetchAsync(u64(heap), size, -1, None)",
        "cuMemPrefetchAsync_v2, host's": "cuda.cuMemPrefetchAsync_v2(u64(heap), size, DEVICE, 0, None)",
        "cuMemPrefetchAsync_v2, own": "cuda.cuMemPrefetchAsync_v2(u64(own), size, DEVICE, 0, None)",
        "cuMemPrefetchAsync_v2, back": "cuda.cuMemPrefetchAsync_v2(u64(heap), size, HOST, 0, None)",
        "batch, own and host's": "cuda.cuMemPrefetchBatchAsync(*batch(own, heap, to=DEVICE))",
        "batch, own": "cuda.cuMemPrefetchBatchAsync(*batch(own, own, to=DEVICE))",
        "advice of a place, host's": "cuda.cuMemAdvise_v2(u64(heap), size, 3, DEVICE)",
        "advice of another kind, host's": "cuda.cuMemAdvise_v2(u64(heap), size, 5, DEVICE)",
    }
    got = regions.tenant(
        region, MOVES + f"r = {calls[call]}\nanswer(r=r, moved=stub().stub_moved())"
    )
    if refused:  # as by a driver whose GPU cannot use the host's memory
        assert (got["r"], got["moved"]) == (1, 0), "CUDA_ERROR_INVALID_VALUE, and nothing happened"
    else:
        assert got["r"] == 0
        assert got["moved"] > 0
