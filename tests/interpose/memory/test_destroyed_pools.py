"""A memory pool that is destroyed while something of it is handed out: the driver keeps its chunks, and so does the charge."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

from tests.interpose.memory.world import LIMIT, World, world
from tests.kit.simulator.clients import Client, Cuda
from tests.kit.simulator.cuda import MIB, U64, Location, PoolProps, Size

PIECE = 2 * MIB
CHUNK_PIECES = 16
"""Pieces in a chunk of the simulated driver."""
OUT_OF_MEMORY = 2

kept: list[int] = []


def pool_of_remains(cuda: Cuda, pieces: int) -> None:
    """Fill a pool with pieces, free all but one of each chunk, and destroy it."""
    pool, got = c.c_void_p(), list[int]()
    cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(1, 0))))
    for _ in range(pieces):
        at = U64()
        code = cuda.try_("cuMemAllocFromPoolAsync", c.byref(at), Size(PIECE), pool, None)
        if code == OUT_OF_MEMORY:
            break
        assert code == 0
        got.append(at.value)
    for number, address in enumerate(got):
        if number % CHUNK_PIECES:
            cuda.cuMemFreeAsync(U64(address), None)
    kept.extend(got[::CHUNK_PIECES])
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolDestroy(pool)


def take_all(cuda: Cuda) -> int:
    """Bytes that plain allocations still get."""
    had = 0
    while cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(16 * MIB)) == 0:
        had += 16 * MIB
    return had


def free_remains(cuda: Cuda) -> None:
    for at in kept:
        cuda.cuMemFree_v2(U64(at))
    kept.clear()
    cuda.cuCtxSynchronize()


def tenant(here: World) -> Client:
    client = here.client(0)
    assert client is not None
    return client


def test_a_grant_gets_no_more_than_its_limit_by_destroying_pools(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        client = tenant(here)
        client.call(pool_of_remains, LIMIT // PIECE)
        here.check("destroyed with something of each chunk left", ragged=False)
        client.call(take_all)
        here.check("filled", ragged=False)


def test_what_a_destroyed_pool_held_comes_back_with_its_last_allocation(tmp_path: Path) -> None:
    with world(tmp_path) as here:
        client = tenant(here)
        before = here.region.charged()
        for _ in range(12):
            client.call(pool_of_remains, CHUNK_PIECES)
            here.check("destroyed", ragged=False)
        assert here.region.charged() >= before + 12 * PIECE
        client.call(free_remains)
        here.check("freed", ragged=False)
        assert here.region.charged() == before
