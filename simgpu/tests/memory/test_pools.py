"""Memory pools of the simulated GPU: what they reserve, keep and give back."""

from __future__ import annotations

import ctypes as c

from tests.kit.simulator.clients import Card, Cuda
from tests.kit.simulator.cuda import (
    CHUNK,
    GIB,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    OUT_OF_MEMORY,
    U64,
    Location,
    PoolProps,
    Size,
    get,
    pattern,
    put,
    used,
)

THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH = 4, 5, 6, 7, 8


def pool_value(cuda: Cuda, pool: c.c_void_p, attribute: int) -> int:
    value = U64()
    cuda.cuMemPoolGetAttribute(pool, attribute, c.byref(value))
    return value.value


def test_a_pool_reserves_in_chunks_and_is_charged_for_what_it_keeps(gpu: Card) -> None:
    gpu.client().call(pool_story)


def pool_story(cuda: Cuda) -> None:
    cuda.context()
    start, pool, stream = used(cuda), c.c_void_p(), cuda.stream()
    cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
    current = c.c_void_p()
    cuda.cuDeviceGetMemPool(c.byref(current), 0)
    assert current.value == pool.value
    assert [pool_value(cuda, pool, a) for a in (4, 5, 6, 7, 8)] == [0] * 5

    def take(size: int) -> U64:
        at = U64()
        cuda.cuMemAllocAsync(c.byref(at), Size(size), stream)
        return at

    a, b = take(1000), take(20 * MIB)
    assert used(cuda) - start == CHUNK == pool_value(cuda, pool, RESERVED)
    assert pool_value(cuda, pool, USED) == 1024 + 20 * MIB
    big = take(100 * MIB)
    assert used(cuda) - start == 5 * CHUNK
    data = pattern(20 * MIB)
    put(cuda, b.value, data)
    put(cuda, a.value, b"x" * 1000)
    assert get(cuda, b.value, 20 * MIB) == data
    base, length, owner = U64(), Size(), c.c_void_p()
    cuda.cuMemGetAddressRange_v2(c.byref(base), c.byref(length), U64(b.value + 9))
    assert (base.value, length.value) == (b.value, 20 * MIB)
    cuda.cuPointerGetAttribute(c.byref(owner), 17, b)
    assert owner.value == pool.value
    for at in (a, b):
        cuda.cuMemFreeAsync(at, stream)
    assert cuda.try_("cuMemFreeAsync", b, stream) == INVALID_VALUE
    assert pool_value(cuda, pool, USED) == 100 * MIB
    assert used(cuda) - start == 5 * CHUNK  # kept
    again = take(30 * MIB)
    assert used(cuda) - start == 5 * CHUNK  # and used again
    cuda.cuMemFree_v2(again)
    assert cuda.try_("cuMemFree_v2", again) == INVALID_VALUE
    cuda.cuMemPoolTrimTo(pool, Size(0))
    assert used(cuda) - start == 4 * CHUNK
    cuda.cuMemFreeAsync(big, stream)
    assert pool_value(cuda, pool, RESERVED) == 4 * CHUNK
    cuda.cuMemPoolTrimTo(pool, Size(0))
    assert used(cuda) == start
    assert pool_value(cuda, pool, RESERVED_HIGH) == 5 * CHUNK
    assert pool_value(cuda, pool, USED_HIGH) == 130 * MIB
    for attribute in (RESERVED_HIGH, USED_HIGH):
        assert cuda.try_("cuMemPoolSetAttribute", pool, attribute, c.byref(U64(1))) == INVALID_VALUE
        cuda.cuMemPoolSetAttribute(pool, attribute, c.byref(U64(0)))
        assert pool_value(cuda, pool, attribute) == 0
    assert cuda.try_("cuMemPoolSetAttribute", pool, RESERVED, c.byref(U64(0))) == INVALID_VALUE
    plain = cuda.alloc(MIB)
    assert cuda.try_("cuMemFreeAsync", U64(plain), stream) == INVALID_VALUE  # no pool's


def test_a_chunk_stays_while_the_device_may_still_use_it(gpu: Card) -> None:
    gpu.client().call(busy_chunk)


def busy_chunk(cuda: Cuda) -> None:
    cuda.context()
    start, pool, stream, at = used(cuda), c.c_void_p(), cuda.stream(), U64()
    cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
    cuda.cuMemAllocAsync(c.byref(at), Size(MIB), stream)
    cuda.launch(cuda.kernel(), stream, 600_000_000)
    cuda.cuMemFreeAsync(at, stream)
    cuda.cuMemPoolTrimTo(pool, Size(0))
    assert used(cuda) == start + CHUNK
    cuda.cuStreamSynchronize(stream)
    cuda.cuMemPoolTrimTo(pool, Size(0))
    assert used(cuda) == start


def test_what_pools_only_keep_is_given_back_before_memory_runs_out(gpu: Card) -> None:
    gpu.client().call(kept_memory)


def kept_memory(cuda: Cuda) -> None:
    cuda.context()
    pool, at = c.c_void_p(), U64()
    free, _ = cuda.memory()
    cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
    cuda.cuMemPoolSetAttribute(pool, THRESHOLD, c.byref(U64(2**64 - 1)))
    cuda.cuMemAllocAsync(c.byref(at), Size(10 * GIB), None)
    cuda.cuMemFreeAsync(at, None)
    cuda.cuCtxSynchronize()
    assert cuda.memory()[0] == free - 10 * GIB
    whole = cuda.alloc(free)
    assert cuda.memory()[0] == 0
    cuda.cuMemFree_v2(U64(whole))
    assert cuda.memory()[0] == free


def test_created_pools_are_apart_bounded_and_destroyed_when_empty(gpu: Card) -> None:
    gpu.client().call(created_pools)


def created_pools(cuda: Cuda) -> None:
    cuda.context()
    start, pool, default, current = used(cuda), c.c_void_p(), c.c_void_p(), c.c_void_p()
    cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(1, 0), None, 2 * CHUNK)))
    cuda.cuDeviceGetDefaultMemPool(c.byref(default), 0)
    assert pool.value != default.value
    at, more = U64(), U64()
    cuda.cuMemAllocFromPoolAsync(c.byref(at), Size(2 * CHUNK), pool, None)
    assert cuda.try_("cuMemAllocFromPoolAsync", c.byref(more), Size(1), pool, None) == OUT_OF_MEMORY
    assert pool_value(cuda, pool, RESERVED) == 2 * CHUNK
    assert pool_value(cuda, default, RESERVED) == 0
    cuda.cuDeviceSetMemPool(0, pool)
    cuda.cuDeviceGetMemPool(c.byref(current), 0)
    assert current.value == pool.value
    cuda.cuMemPoolDestroy(pool)
    cuda.cuDeviceGetMemPool(c.byref(current), 0)
    assert current.value == default.value
    assert cuda.try_("cuMemPoolTrimTo", pool, Size(0)) == INVALID_VALUE
    assert used(cuda) == start + 2 * CHUNK  # its block is still out
    put(cuda, at.value, b"alive")
    cuda.cuMemFree_v2(at)
    cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(1, 0))))
    cuda.cuMemPoolDestroy(pool)  # and whatever else was waiting to go
    assert used(cuda) == start
    table = {
        "the default pool": cuda.try_("cuMemPoolDestroy", default),
        "destroyed twice": cuda.try_("cuMemPoolDestroy", pool),
        "no pool": cuda.try_("cuMemPoolDestroy", None),
        "no properties": cuda.try_("cuMemPoolCreate", c.byref(pool), None),
        "no type": cuda.try_(
            "cuMemPoolCreate", c.byref(pool), c.byref(PoolProps(0, 0, Location(1, 0)))
        ),
        "no size": cuda.try_("cuMemAllocAsync", c.byref(at), Size(0), None),
        "no answer": cuda.try_("cuMemAllocAsync", None, Size(1), None),
        "from no pool": cuda.try_("cuMemAllocFromPoolAsync", c.byref(at), Size(1), None, None),
        "free of nothing": cuda.try_("cuMemFreeAsync", U64(0), None),
    }
    assert {what: code for what, code in table.items() if code != INVALID_VALUE} == {}
    assert cuda.try_("cuDeviceGetDefaultMemPool", c.byref(pool), 9) == INVALID_DEVICE
