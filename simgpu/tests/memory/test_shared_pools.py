"""Pools between processes of the simulated node: one memory, its exporter's charge, the API's own rules."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.simulator.clients import Card, Cuda, card
from tests.kit.simulator.cuda import (
    CHUNK,
    INVALID_VALUE,
    MIB,
    NOT_SUPPORTED,
    POSIX_FD,
    U64,
    Location,
    PoolProps,
    Size,
    Ticket,
    get,
    pattern,
    put,
    used,
)
from tests.kit.simulator.shared_pool import (
    drop_pool,
    give,
    give_up,
    here,
    make_pool,
    take,
    take_pool,
)

RESERVED, USED = 5, 7
SUPPORTED_HANDLES = 119


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def begin(cuda: Cuda) -> None:
    cuda.context()


def figures(cuda: Cuda) -> tuple[int, int]:
    out = []
    for attribute in (RESERVED, USED):
        value = U64()
        cuda.cuMemPoolGetAttribute(here["pool"], attribute, c.byref(value))
        out.append(value.value)
    return out[0], out[1]


def test_memory_of_a_shared_pool_is_one_memory_and_its_exporters(gpu: Card) -> None:
    exporter, importer = gpu.client(), gpu.client()
    exporter.call(begin)
    importer.call(begin)
    before = importer.call(used)
    fd = exporter.call(make_pool)
    size = 3 * MIB + 5
    one, first = exporter.call(give, size, 1)
    _, second = exporter.call(give, 40 * MIB, 2)  # in a chunk of its own, and over several pages
    assert importer.call(used) == before + CHUNK + 2 * CHUNK
    importer.call(take_pool, exporter.pid, fd)
    assert importer.call(figures) == (0, 0)
    here, there = importer.call(take, first), importer.call(take, second)
    assert importer.call(get, here, size) == pattern(size, 1)
    assert importer.call(get, there, 40 * MIB) == pattern(40 * MIB, 2)
    assert importer.call(used) == before + CHUNK + 2 * CHUNK
    reserved, in_use = importer.call(figures)
    assert in_use == (size + 511) // 512 * 512 + 40 * MIB
    assert reserved >= in_use
    importer.call(put, here, b"from there")
    assert exporter.call(get, one, 10) == b"from there"
    assert importer.call(give_up, here) == 0
    assert importer.call(give_up, here) == INVALID_VALUE
    assert importer.call(give_up, there, "cuMemFree_v2") == 0
    assert importer.call(figures) == (0, 0)
    importer.call(drop_pool)
    assert exporter.call(get, one, 10) == b"from there"
    assert exporter.call(give_up, one) == 0
    exporter.call(drop_pool)
    assert importer.call(used) == before + 2 * CHUNK  # one allocation is still out


def rules(cuda: Cuda, pid: int, fd: int, ticket: bytes) -> dict[str, int]:
    """Results of calls that an importer may not make, and of those that neither side may make."""
    at, more, attribute = U64(), c.c_int(), c.c_int()
    default, wrong = c.c_void_p(), Ticket()
    cuda.cuDeviceGetAttribute(c.byref(attribute), SUPPORTED_HANDLES, 0)
    cuda.cuDeviceGetDefaultMemPool(c.byref(default), 0)
    pool, ours = here["pool"], os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    export, plain = "cuMemPoolExportToShareableHandle", cuda.alloc(512)
    own, other = c.c_void_p(), Ticket.from_buffer_copy(ticket)
    cuda.cuMemPoolCreate(c.byref(own), c.byref(PoolProps(1, POSIX_FD, Location(1, 0))))
    other.bytes[22] = 0x7F  # an offset that is in no file
    with open("/dev/null") as null:
        strange = null.fileno()
        answers = {
            "handles": attribute.value - POSIX_FD,
            "allocate": cuda.try_("cuMemAllocFromPoolAsync", c.byref(at), Size(1), pool, None),
            "make current": cuda.try_("cuDeviceSetMemPool", 0, pool),
            "pass on": cuda.try_(export, c.byref(more), pool, POSIX_FD, U64(0)),
            "share the default": cuda.try_(export, c.byref(more), default, POSIX_FD, U64(0)),
            "flags": cuda.try_(export, c.byref(more), own, POSIX_FD, U64(1)),
            "kind": cuda.try_(export, c.byref(more), own, 8, U64(0)),
            "no file of ours": cuda.try_(
                "cuMemPoolImportFromShareableHandle",
                c.byref(default),
                c.c_void_p(strange),
                POSIX_FD,
                U64(0),
            ),
            "plain pointer": cuda.try_("cuMemPoolExportPointer", c.byref(wrong), U64(plain)),
            "no ticket": cuda.try_("cuMemPoolImportPointer", c.byref(at), pool, c.byref(Ticket())),
            "ticket of another file": cuda.try_(
                "cuMemPoolImportPointer", c.byref(at), own, c.byref(Ticket.from_buffer_copy(ticket))
            ),
            "beyond the file": cuda.try_(
                "cuMemPoolImportPointer", c.byref(at), pool, c.byref(other)
            ),
            "fabric pool": cuda.try_(
                "cuMemPoolCreate", c.byref(default), c.byref(PoolProps(1, 8, Location(1, 0)))
            )
            - NOT_SUPPORTED,
        }
    os.close(ours)
    cuda.cuMemPoolDestroy(own)
    return answers


def test_what_an_imported_pool_is_not_for(gpu: Card) -> None:
    exporter, importer = gpu.client(), gpu.client()
    exporter.call(begin)
    importer.call(begin)
    fd = exporter.call(make_pool)
    _, ticket = exporter.call(give, MIB)
    importer.call(take_pool, exporter.pid, fd)
    answers = importer.call(rules, exporter.pid, fd, ticket)
    assert answers.pop("handles") == 0
    assert answers.pop("fabric pool") == 0
    assert {what: code for what, code in answers.items() if code != INVALID_VALUE} == {}


def trim(cuda: Cuda, at: int) -> tuple[int, int]:
    """Figures of a shared pool after everything is freed and trimmed."""
    cuda.cuMemFreeAsync(U64(at), None)
    cuda.cuStreamSynchronize(None)
    cuda.cuMemPoolTrimTo(here["pool"], Size(0))
    return figures(cuda)


def test_a_shared_pool_gives_nothing_back_before_it_ends(gpu: Card) -> None:
    exporter, witness = gpu.client(), gpu.client()
    exporter.call(begin)
    witness.call(begin)
    before = witness.call(used)
    exporter.call(make_pool)
    at, _ = exporter.call(give, MIB)
    assert exporter.call(trim, at) == (CHUNK, 0)
    exporter.call(drop_pool)
    assert witness.call(used) == before


def test_the_bytes_outlive_the_process_that_shared_them(gpu: Card) -> None:
    exporter, importer = gpu.client(), gpu.client()
    exporter.call(begin)
    importer.call(begin)
    fd = exporter.call(make_pool)
    _, ticket = exporter.call(give, MIB)
    importer.call(take_pool, exporter.pid, fd)
    at = importer.call(take, ticket)
    exporter.kill()
    exporter.close()
    assert importer.call(get, at, MIB) == pattern(MIB)
    assert importer.call(give_up, at) == 0
