"""Every allocation of the simulated GPU charges exactly, and gives all of it back.

What is charged is read through cuMemGetInfo, to the byte.
"""

from __future__ import annotations

import ctypes as c
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.simulator.clients import Card, Cuda, CudaError
from tests.kit.simulator.cuda import (
    DEFERRED,
    FLOAT,
    GIB,
    INVALID_HANDLE,
    INVALID_VALUE,
    LAYERED,
    MIB,
    OUT_OF_MEMORY,
    PAGE,
    POSIX_FD,
    U64,
    UINT8,
    UINT32,
    Array2D,
    Array3D,
    Size,
    array3d,
    create,
    get,
    observe,
    prop,
    put,
    used,
)


def test_every_allocation_charges_what_it_takes_and_freeing_returns_it(gpu: Card) -> None:
    gpu.client().call(charges)


def charges(cuda: Cuda) -> None:
    cuda.context()
    start = used(cuda)

    def pages(size: int) -> int:
        return (size + PAGE - 1) // PAGE * PAGE

    def pointer(name: str, *arguments: Any) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            at = U64()
            getattr(cuda, name)(c.byref(at), *arguments)
            return lambda: cuda.cuMemFree_v2(at)

        return make

    def array(desc: Any, name: str) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            handle = c.c_void_p()
            getattr(cuda, name)(c.byref(handle), c.byref(desc))
            return lambda: cuda.cuArrayDestroy(handle)

        return make

    def mipmap(desc: Array3D, levels: int) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            handle = c.c_void_p()
            cuda.cuMipmappedArrayCreate(c.byref(handle), c.byref(desc), levels)
            return lambda: cuda.cuMipmappedArrayDestroy(handle)

        return make

    def physical(size: int, handles: int) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            handle = create(cuda, size, handles)
            return lambda: cuda.cuMemRelease(handle)

        return make

    mips = sum(-(-(1024 >> i) * 4 // 512) * 512 * max(1, 512 >> i) for i in range(11))
    table: list[tuple[str, Callable[[], Callable[[], None]], int]] = [
        ("a byte", pointer("cuMemAlloc_v2", Size(1)), PAGE),
        ("a MiB shares a page", pointer("cuMemAlloc_v2", Size(MIB)), PAGE),
        ("a MiB and a byte", pointer("cuMemAlloc_v2", Size(MIB + 1)), PAGE),
        ("five MiB", pointer("cuMemAlloc_v2", Size(5 * MIB)), pages(5 * MIB)),
        ("a GiB", pointer("cuMemAlloc_v2", Size(GIB)), GIB),
        ("managed", pointer("cuMemAllocManaged", Size(100), 1), PAGE),
        (
            "pitched",
            pointer("cuMemAllocPitch_v2", c.byref(Size()), Size(513), Size(5000), 4),
            pages(1024 * 5000),
        ),
        (
            "array of rows",
            array(Array2D(1030, 30000, FLOAT, 1), "cuArrayCreate_v2"),
            pages(4608 * 30000),
        ),
        (
            "array of four channels",
            array(Array2D(1000, 3000, FLOAT, 4), "cuArrayCreate_v2"),
            pages(16384 * 3000),
        ),
        ("array in one dimension", array(Array2D(1000, 0, UINT8, 1), "cuArrayCreate_v2"), PAGE),
        (
            "box",
            array(Array3D(100, 200, 300, UINT32, 2, 0), "cuArray3DCreate_v2"),
            pages(1024 * 200 * 300),
        ),
        (
            "layers",
            array(Array3D(100, 0, 300, UINT32, 2, LAYERED), "cuArray3DCreate_v2"),
            pages(1024 * 300),
        ),
        (
            "deferred: nothing yet",
            array(Array3D(999, 999, 0, FLOAT, 1, DEFERRED), "cuArray3DCreate_v2"),
            0,
        ),
        ("all levels of a mipmap", mipmap(Array3D(1024, 512, 0, FLOAT, 1, 0), 99), pages(mips)),
        ("physical", physical(6 * MIB, 0), 6 * MIB),
        ("physical, exportable", physical(6 * MIB, POSIX_FD), 6 * MIB),
    ]
    for what, make, expected in table:
        free = make()
        assert used(cuda) - start == expected, what
        free()
        assert used(cuda) == start, f"{what}, freed"
    frees = [make() for _, make, _ in table * 3]
    random.Random(3).shuffle(frees)
    for free in frees:
        free()
    assert used(cuda) == start


def test_small_allocations_share_pages_and_the_last_one_frees_the_page(gpu: Card) -> None:
    gpu.client().call(slabs)


def slabs(cuda: Cuda) -> None:
    cuda.context()
    start = used(cuda)
    many = [cuda.alloc(512) for _ in range(4096)]
    assert len(set(many)) == 4096
    assert used(cuda) - start == PAGE
    more = cuda.alloc(512)
    assert used(cuda) - start == 2 * PAGE
    for i, at in enumerate(many[:200]):
        put(cuda, at, i.to_bytes(2, "little") * 256)
    assert all(
        get(cuda, at, 512) == i.to_bytes(2, "little") * 256 for i, at in enumerate(many[:200])
    )
    for at in [*many, more]:
        cuda.cuMemFree_v2(U64(at))
    assert used(cuda) == start


def test_all_of_a_contexts_memory_goes_with_it(gpu: Card) -> None:
    gpu.client().call(context_end)


def context_end(cuda: Cuda) -> None:
    cuda.context()  # stays, to look with
    start = used(cuda)
    second = c.c_void_p()
    cuda.cuCtxCreate_v2(c.byref(second), 0, 0)
    at, pooled, array, mip = U64(), U64(), c.c_void_p(), c.c_void_p()
    cuda.cuMemAlloc_v2(c.byref(at), Size(5 * MIB))
    cuda.alloc(100)
    cuda.cuMemAllocAsync(c.byref(pooled), Size(MIB), None)
    shape = Array3D(512, 512, 0, FLOAT, 1, 0)
    cuda.cuArray3DCreate_v2(c.byref(array), c.byref(shape))
    cuda.cuMipmappedArrayCreate(c.byref(mip), c.byref(shape), 3)
    assert used(cuda) > start
    cuda.cuCtxDestroy_v2(second)
    assert used(cuda) == start
    assert cuda.try_("cuArrayDestroy", array) == INVALID_HANDLE
    assert cuda.try_("cuMemFree_v2", at) == INVALID_VALUE
    assert cuda.try_("cuMemFree_v2", pooled) == INVALID_VALUE


def test_the_card_is_full_at_its_last_page_and_not_before(gpu: Card) -> None:
    gpu.client().call(to_the_last_page)


def to_the_last_page(cuda: Cuda) -> None:
    cuda.context()
    start = used(cuda)
    free, _ = cuda.memory()
    assert free % PAGE == 0
    assert cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(free + 1)) == OUT_OF_MEMORY
    assert (
        cuda.try_("cuMemCreate", c.byref(U64()), Size(free + PAGE), c.byref(prop()), U64(0))
        == OUT_OF_MEMORY
    )
    assert cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(2**63)) == OUT_OF_MEMORY
    all_but_one = cuda.alloc(free - PAGE)
    last = cuda.alloc(512)
    assert cuda.memory()[0] == 0
    also = cuda.alloc(512)  # on the last page, which is charged already
    shape = Array2D(16, 0, UINT8, 1)
    for name, code in {
        "a page": cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(PAGE)),
        "managed": cuda.try_("cuMemAllocManaged", c.byref(U64()), Size(1), 1),
        "array": cuda.try_("cuArrayCreate_v2", c.byref(c.c_void_p()), c.byref(shape)),
        "pool": cuda.try_("cuMemAllocAsync", c.byref(U64()), Size(1), None),
        "physical": cuda.try_("cuMemCreate", c.byref(U64()), Size(PAGE), c.byref(prop()), U64(0)),
        "exportable": cuda.try_(
            "cuMemCreate", c.byref(U64()), Size(PAGE), c.byref(prop(POSIX_FD)), U64(0)
        ),
        "context": cuda.try_("cuCtxCreate_v2", c.byref(c.c_void_p()), 0, 0),
    }.items():
        assert code == OUT_OF_MEMORY, name
    for at in (all_but_one, last, also):
        cuda.cuMemFree_v2(U64(at))
    assert used(cuda) == start


def test_a_killed_process_leaves_nothing_behind(gpu: Card) -> None:
    observer, victim = gpu.client(), gpu.client()
    before = observer.call(observe)
    victim.call(take_everything_kinds)
    assert observer.call(used) > before + 500 * MIB
    victim.kill()
    deadline = threading.Event()
    for _ in range(200):
        if observer.call(used) == before:
            return
        deadline.wait(0.02)
    pytest.fail(f"{observer.call(used) - before} bytes still charged")


def take_everything_kinds(cuda: Cuda) -> None:
    cuda.context()
    cuda.alloc(300 * MIB)
    cuda.alloc(5)
    cuda.cuMemAllocAsync(c.byref(U64()), Size(50 * MIB), None)
    create(cuda, 100 * MIB, 0)
    create(cuda, 100 * MIB, POSIX_FD)
    array3d(cuda, 1024, 1024, 0)
    cuda.launch(cuda.kernel("sim_busy_forever"))


def test_threads_that_take_and_free_at_once_lose_nothing(gpu: Card) -> None:
    gpu.client().call(crowd)


def crowd(cuda: Cuda) -> None:
    context = cuda.context()
    start = used(cuda)
    failures: list[object] = []

    def take(rng: random.Random, stream: c.c_void_p) -> tuple[int, bytes, bool]:
        pointer, size = U64(), Size(rng.choice([64, 3000, MIB, 3 * MIB, 40 * MIB]))
        asynchronous, mark = rng.random() < 0.5, rng.randbytes(64)
        if asynchronous:
            cuda.cuMemAllocAsync(c.byref(pointer), size, stream)
        else:
            cuda.cuMemAlloc_v2(c.byref(pointer), size)
        put(cuda, pointer.value, mark)
        return pointer.value, mark, asynchronous

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[int, bytes, bool]] = []
        try:
            cuda.cuCtxSetCurrent(context)
            stream = cuda.stream()
            for step in range(400):
                if not held or rng.random() < 0.5:
                    held.append(take(rng, stream))
                    continue
                at, mark, asynchronous = held.pop(rng.randrange(len(held)))
                if get(cuda, at, 64) != mark:
                    failures.append((seed, step))
                if asynchronous:
                    cuda.cuMemFreeAsync(U64(at), stream)
                else:
                    cuda.cuMemFree_v2(U64(at))
            for at, _, _ in held:
                cuda.cuMemFree_v2(U64(at))
        except CudaError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    pool = c.c_void_p()
    cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
    cuda.cuCtxSynchronize()
    cuda.cuMemPoolTrimTo(pool, Size(0))
    assert used(cuda) == start
