"""Modules and libraries of the simulated driver: what an image says of itself is what the calls answer."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu.tests.driver import images
from tests.kit.simulator.clients import GIB, Card, Cuda, card

NO_BINARY, NOT_FOUND, INVALID_VALUE, INVALID_CONTEXT, DESTROYED = 209, 500, 1, 201, 709
MAX_THREADS, SHARED, REGISTERS, PTX_VERSION, BINARY_VERSION, MAX_DYNAMIC = 0, 1, 4, 5, 6, 8


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def load(cuda: Cuda, image: bytes) -> c.c_void_p:
    module = c.c_void_p()
    cuda.cuModuleLoadData(c.byref(module), image)
    return module


def function(cuda: Cuda, module: c.c_void_p, name: str) -> c.c_void_p:
    handle = c.c_void_p()
    cuda.cuModuleGetFunction(c.byref(handle), module, name.encode())
    return handle


def attributes(cuda: Cuda, handle: c.c_void_p, *wanted: int) -> list[int]:
    value, answer = c.c_int(), []
    for attribute in wanted:
        cuda.cuFuncGetAttribute(c.byref(value), attribute, handle)
        answer.append(value.value)
    return answer


def parameters(cuda: Cuda, handle: c.c_void_p) -> list[tuple[int, int]]:
    offset, size, answer = c.c_size_t(), c.c_size_t(), []
    while not (
        code := cuda.try_(
            "cuFuncGetParamInfo", handle, c.c_size_t(len(answer)), c.byref(offset), c.byref(size)
        )
    ):
        answer.append((offset.value, size.value))
    assert code == INVALID_VALUE
    return answer


def of_ptx(cuda: Cuda) -> tuple[list[int], list[tuple[int, int]], list[str], int]:
    cuda.context()
    module = load(cuda, images.ptx())
    first = function(cuda, module, "first")
    count, name = c.c_uint(), c.c_char_p()
    cuda.cuModuleGetFunctionCount(c.byref(count), module)
    handles = (c.c_void_p * count.value)()
    cuda.cuModuleEnumerateFunctions(handles, count, module)
    names = []
    for handle in handles:
        cuda.cuFuncGetName(c.byref(name), c.c_void_p(handle))
        names.append((name.value or b"").decode())
    wanted = (MAX_THREADS, SHARED, PTX_VERSION, BINARY_VERSION, MAX_DYNAMIC)
    missing = cuda.try_("cuModuleGetFunction", c.byref(c.c_void_p()), module, b"third")
    return attributes(cuda, first, *wanted), parameters(cuda, first), names, missing


def test_ptx_tells_its_kernels_their_parameters_and_bounds(gpu: Card) -> None:
    told, params, names, missing = gpu.client().call(of_ptx)
    assert told == [512, 512, 80, 90, 49152 - 512], "PTX of sm_80, compiled for the card's sm_90"
    assert params == [(0, 4), (8, 8), (16, 56), (72, 1)]
    assert names == ["first", "second"]
    assert missing == NOT_FOUND


def of_cubin(cuda: Cuda, image: bytes) -> tuple[list[int], list[tuple[int, int]]]:
    cuda.context()
    kernel = function(cuda, load(cuda, image), "from_elf")
    wanted = (SHARED, REGISTERS, PTX_VERSION, BINARY_VERSION)
    return attributes(cuda, kernel, *wanted), parameters(cuda, kernel)


@pytest.mark.parametrize(
    "image",
    [
        images.cubin(),
        images.fat((80, images.ptx()), (90, images.cubin()), (75, images.cubin(75))),
    ],
    ids=["alone", "the card's own in a fat binary"],
)
def test_a_cubin_tells_its_kernels_their_parameters_and_resources(gpu: Card, image: bytes) -> None:
    told, params = gpu.client().call(of_cubin, image)
    assert told == [256, 40, 90, 90]
    assert params == [(0, 8), (8, 4)]


def loading(cuda: Cuda, image: bytes) -> int:
    cuda.context()
    return cuda.try_("cuModuleLoadData", c.byref(c.c_void_p()), image)


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (images.cubin(80), NO_BINARY),
        (images.cubin(100), NO_BINARY),
        (images.ptx(100), NO_BINARY),
        (images.fat((75, images.cubin(75)), (100, images.ptx(100))), NO_BINARY),
        (images.fat((75, images.cubin(75)), (80, images.ptx(80))), 0),
        (b"an image of which nothing is known", 0),
    ],
    ids=["older", "newer", "newer PTX", "fat with neither", "fat with PTX", "unknown"],
)
def test_code_for_another_generation_is_refused(gpu: Card, image: bytes, code: int) -> None:
    assert gpu.client().call(loading, image) == code


LONG = "_ZN3ns1" + 300 * "5outer" + "E"


def long_name(cuda: Cuda) -> tuple[str, int]:
    cuda.context()
    kernel = function(cuda, load(cuda, images.ptx(name=LONG)), LONG)
    name = c.c_char_p()
    cuda.cuFuncGetName(c.byref(name), kernel)
    cuda.launch(kernel)
    return (name.value or b"").decode(), cuda.try_("cuCtxSynchronize")


def test_a_kernels_name_may_be_of_any_length(gpu: Card) -> None:
    assert gpu.client().call(long_name) == (LONG, 0)


def variables(cuda: Cuda) -> tuple[int, bytes, bool, bool, int, int]:
    cuda.context()
    text, binary = load(cuda, images.ptx()), load(cuda, images.cubin())
    address, again, size = c.c_uint64(), c.c_uint64(), c.c_size_t()
    cuda.cuModuleGetGlobal_v2(c.byref(address), c.byref(size), text, b"counter")
    cuda.cuModuleGetGlobal_v2(c.byref(again), None, text, b"counter")
    same, bytes_ = address.value == again.value, size.value
    cuda.cuModuleGetGlobal_v2(c.byref(address), c.byref(size), binary, b"table")
    content = c.create_string_buffer(size.value)
    cuda.cuMemcpyDtoH_v2(content, address, size)
    library, managed = c.c_void_p(), c.c_uint()
    cuda.cuLibraryLoadData(c.byref(library), images.ptx(), None, None, 0, None, None, 0)
    cuda.cuLibraryGetManaged(c.byref(address), c.byref(size), library, b"shared_count")
    cuda.cuPointerGetAttribute(c.byref(managed), 8, address)
    not_managed = cuda.try_("cuLibraryGetManaged", c.byref(address), None, library, b"counter")
    none = cuda.try_("cuModuleGetGlobal_v2", c.byref(address), None, text, b"nothing")
    return bytes_, content.raw, same, bool(managed.value), not_managed, none


def test_variables_have_an_address_a_size_and_their_initial_bytes(gpu: Card) -> None:
    got = gpu.client().call(variables)
    assert got == (400, b"abcdefgh", True, True, NOT_FOUND, NOT_FOUND)


def too_large(cuda: Cuda) -> list[int]:
    cuda.context()
    kernel = function(cuda, load(cuda, images.ptx()), "first")

    def launch(threads: int, shared: int) -> int:
        return cuda.try_("cuLaunchKernel", kernel, 1, 1, 1, threads, 1, 1, shared, None, None, None)

    codes = [launch(512, 0), launch(513, 0), launch(32, 48 << 10), launch(32, 47 << 10)]
    codes.append(cuda.try_("cuFuncSetAttribute", kernel, MAX_DYNAMIC, 200 << 10))
    return [*codes, launch(32, 48 << 10), cuda.try_("cuFuncSetAttribute", kernel, 8, 1 << 20)]


def test_a_launch_beyond_the_kernels_bounds_is_refused(gpu: Card) -> None:
    refused = INVALID_VALUE
    assert gpu.client().call(too_large) == [0, refused, refused, 0, 0, 0, refused]


def occupancy(cuda: Cuda) -> tuple[int, int, int, int]:
    cuda.context()
    blocks, grid, block, room = c.c_int(), c.c_int(), c.c_int(), c.c_size_t()
    kernel = function(cuda, load(cuda, images.cubin()), "from_elf")
    cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(c.byref(blocks), kernel, 256, c.c_size_t(0))
    cuda.cuOccupancyMaxPotentialBlockSize(
        c.byref(grid), c.byref(block), kernel, None, c.c_size_t(0), 0
    )
    cuda.cuOccupancyAvailableDynamicSMemPerBlock(c.byref(room), kernel, 2, 256)
    return blocks.value, grid.value, block.value, room.value


def test_occupancy_knows_registers_and_shared_memory(gpu: Card) -> None:
    blocks, grid, block, room = gpu.client().call(occupancy)
    assert blocks == 65536 // (40 * 256), "registers bind: 6 blocks where 8 have the threads"
    assert (block, grid) == (544, 3 * 132), "3 * 17 warps: no other size comes nearer to 51.2"
    assert room == 233472 // 2 - 256


def primary(cuda: Cuda) -> dict[str, object]:
    """Retain, release, and look at what is left; then retain again."""
    cuda.cuInit(0)
    first, now, again, identity = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64()
    flags, active = c.c_uint(), c.c_int()
    cuda.cuDevicePrimaryCtxRetain(c.byref(first), 0)
    cuda.cuCtxSetCurrent(first)
    cuda.cuCtxGetId(first, c.byref(identity))
    id_before = identity.value
    cuda.alloc(1 * GIB)
    before = cuda.memory()[0]
    cuda.cuDevicePrimaryCtxRelease_v2(0)
    cuda.cuDevicePrimaryCtxGetState(0, c.byref(flags), c.byref(active))
    cuda.cuCtxGetCurrent(c.byref(now))
    while_inactive = cuda.try_("cuMemAlloc_v2", c.byref(c.c_uint64()), c.c_size_t(4096))
    made_current = cuda.try_("cuCtxSetCurrent", first)
    cuda.cuDevicePrimaryCtxRetain(c.byref(again), 0)
    cuda.cuCtxGetId(again, c.byref(identity))
    after = cuda.memory()[0]
    return {
        "same handle": first.value == again.value == now.value,
        "active in between": active.value,
        "in between": (while_inactive, made_current),
        "another life": identity.value != id_before,
        "its memory went": after - before,
        "a stranger": cuda.try_("cuCtxSetCurrent", c.c_void_p(c.addressof(identity))),
    }


def test_a_primary_contexts_handle_stays_while_nobody_retains_it(gpu: Card) -> None:
    assert gpu.client().call(primary) == {
        "same handle": True,
        "active in between": 0,
        "in between": (DESTROYED, 0),
        "another life": True,
        "its memory went": 1 * GIB,
        "a stranger": INVALID_CONTEXT,
    }
