"""Pools shared between processes of a grant: the exporter is charged, no pool is charged twice, and the cap holds whichever process dies."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interpose.memory.world import LIMIT, World, world
from tests.interpose.regions import GIB
from tests.kit.simulator.clients import Client, Cuda
from tests.kit.simulator.cuda import INVALID_VALUE, MIB, OUT_OF_MEMORY, U64, Size, get, pattern
from tests.kit.simulator.shared_pool import (
    drop_pool,
    give,
    give_up,
    make_pool,
    take,
    take_pool,
)
from tests.kit.simulator.shared_pool import (
    here as pool_here,
)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as it:
        yield it


def pair(here: World) -> tuple[Client, Client]:
    exporter, importer = here.client(0), here.client(1)
    assert exporter is not None
    assert importer is not None
    return exporter, importer


def misuse(cuda: Cuda) -> list[int]:
    """Calls that look like allocations from an imported pool; the driver refuses them."""
    at = U64()
    codes = [cuda.try_("cuMemAllocFromPoolAsync", c.byref(at), Size(MIB), pool_here["pool"], None)]
    codes.append(cuda.try_("cuDeviceSetMemPool", 0, pool_here["pool"]))
    cuda.cuMemPoolTrimTo(pool_here["pool"], Size(0))
    cuda.cuCtxSynchronize()
    return codes


def fill(cuda: Cuda) -> int:
    """Fill the shared pool in pieces until it is out of memory; returns the bytes taken."""
    had, at = 0, U64()
    while True:
        code = cuda.try_(
            "cuMemAllocFromPoolAsync", c.byref(at), Size(64 * MIB), pool_here["pool"], None
        )
        if code:
            assert code == OUT_OF_MEMORY
            return had
        had += 64 * MIB


def try_to_take(cuda: Cuda, size: int) -> int:
    return cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(size))


def test_the_exporter_of_a_pool_pays_and_who_imports_it_does_not(here: World) -> None:
    exporter, importer = pair(here)
    fd = exporter.call(make_pool)
    size = 100 * MIB
    at, ticket = exporter.call(give, size)
    here.check("exported", ragged=False)
    charged = here.region.charged()
    importer.call(take_pool, exporter.pid, fd)
    mapped = importer.call(take, ticket)
    assert importer.call(get, mapped, 64) == pattern(size)[:64]
    assert here.region.charged() == charged
    here.check("imported", ragged=False)
    assert importer.call(misuse) == [INVALID_VALUE, INVALID_VALUE]
    assert here.region.charged() == charged, "what an imported pool has reserved is its exporter's"
    here.check("misused", ragged=False)
    assert importer.call(give_up, mapped) == 0
    importer.call(drop_pool)
    assert here.region.charged() == charged
    assert exporter.call(give_up, at) == 0
    exporter.call(drop_pool)
    here.check("over", ragged=False)
    assert here.region.charged() < charged - size


def test_the_cap_holds_with_shared_pools(here: World) -> None:
    exporter, importer = pair(here)
    fd = exporter.call(make_pool)
    _, ticket = exporter.call(give, 64 * MIB)
    had = exporter.call(fill)
    here.check("full", ragged=False)
    assert had + 64 * MIB <= LIMIT
    assert LIMIT - here.region.charged() < 64 * MIB
    importer.call(
        take_pool, exporter.pid, fd
    )  # a full grant does not keep a process from importing
    assert importer.call(take, ticket)
    assert importer.call(try_to_take, 64 * MIB) == OUT_OF_MEMORY
    here.check("imported", ragged=False)


def test_an_importer_that_dies_takes_nothing_with_it(here: World) -> None:
    exporter, importer = pair(here)
    before = here.region.charged()
    fd = exporter.call(make_pool)
    _, ticket = exporter.call(give, 64 * MIB)
    pool = here.region.charged() - before
    importer.call(take_pool, exporter.pid, fd)
    importer.call(take, ticket)
    here.kill(1)
    here.check("the importer is dead", ragged=False)
    assert here.region.charged() > pool
    assert exporter.call(drop_pool) is None


def test_an_exporter_that_dies_leaves_room_for_others(here: World) -> None:
    exporter, importer = pair(here)
    fd = exporter.call(make_pool)
    _, ticket = exporter.call(give, 64 * MIB)
    exporter.call(fill)
    importer.call(take_pool, exporter.pid, fd)
    mapped = importer.call(take, ticket)
    assert importer.call(try_to_take, GIB) == OUT_OF_MEMORY
    here.kill(0)
    here.check("the exporter is dead", ragged=False)
    assert importer.call(get, mapped, 64) == pattern(64 * MIB)[:64]
    assert importer.call(try_to_take, 64 * MIB) == 0
    here.check("room again", ragged=False)
