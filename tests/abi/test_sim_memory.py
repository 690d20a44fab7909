"""The simulated GPU's memory: every door moves the right bytes, charges exactly, and gives all of it back.

What is charged is read through cuMemGetInfo, to the byte. The functions that take a `cuda` run in a client process.
"""

from __future__ import annotations

import ctypes as c
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.abi.clients import Card, Client, Cuda, CudaError, card

KIB, MIB, GIB = 2**10, 2**20, 2**30
PAGE = 2 * MIB
CHUNK = 32 * MIB

INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_CONTEXT = 1, 2, 101, 201
MAP_FAILED, INVALID_HANDLE, NOT_FOUND, NOT_SUPPORTED = 205, 400, 500, 801
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
CAPTURE_UNSUPPORTED, CAPTURE_IMPLICIT = 900, 906

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4  # CUmemorytype
UINT8, UINT32, FLOAT = 1, 3, 32  # CUarray_format
LAYERED, CUBEMAP, DEFERRED = 0x01, 0x04, 0x80
POSIX_FD = 1
LAZY_PEER = 1

U64 = c.c_uint64
Size = c.c_size_t


class Array2D(c.Structure):
    _fields_ = [("width", Size), ("height", Size), ("format", c.c_int), ("channels", c.c_uint)]


class Array3D(c.Structure):
    _fields_ = [
        ("width", Size),
        ("height", Size),
        ("depth", Size),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    ]


class Needs(c.Structure):
    _fields_ = [("size", Size), ("alignment", Size), ("reserved", c.c_uint * 4)]


class Copy2D(c.Structure):
    _fields_ = [
        (side + name, kind)
        for side in ("src", "dst")
        for name, kind in (
            ("X", Size),
            ("Y", Size),
            ("Type", c.c_int),
            ("Host", c.c_void_p),
            ("Device", U64),
            ("Array", c.c_void_p),
            ("Pitch", Size),
        )
    ] + [("Width", Size), ("Height", Size)]


class Copy3D(c.Structure):
    """CUDA_MEMCPY3D_PEER; the plain form has reserved words in the place of the contexts."""

    _fields_ = [
        (side + name, kind)
        for side in ("src", "dst")
        for name, kind in (
            ("X", Size),
            ("Y", Size),
            ("Z", Size),
            ("Lod", Size),
            ("Type", c.c_int),
            ("Host", c.c_void_p),
            ("Device", U64),
            ("Array", c.c_void_p),
            ("Context", c.c_void_p),
            ("Pitch", Size),
            ("Rows", Size),
        )
    ] + [("Width", Size), ("Height", Size), ("Depth", Size)]


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class Prop(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    ]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", c.c_int)]


class PoolProps(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", c.c_void_p),
        ("max_bytes", Size),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 54),
    ]


class Ticket(c.Structure):
    _fields_ = [("bytes", c.c_ubyte * 64)]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


@pytest.fixture
def two_gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", "2xh100-80gb") as it:
        yield it


def pattern(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def put(cuda: Cuda, address: int, data: bytes) -> None:
    cuda.cuMemcpyHtoD_v2(U64(address), data, Size(len(data)))


def get(cuda: Cuda, address: int, size: int) -> bytes:
    buffer = c.create_string_buffer(size)
    cuda.cuMemcpyDtoH_v2(buffer, U64(address), Size(size))
    return buffer.raw


def used(cuda: Cuda) -> int:
    free, total = cuda.memory()
    return total - free


def array3d(
    cuda: Cuda,
    width: int,
    height: int,
    depth: int,
    fmt: int = UINT8,
    channels: int = 1,
    flags: int = 0,
) -> c.c_void_p:
    handle = c.c_void_p()
    cuda.cuArray3DCreate_v2(
        c.byref(handle), c.byref(Array3D(width, height, depth, fmt, channels, flags))
    )
    return handle


# --- copies -----------------------------------------------------------------------------------------------------------


def test_bytes_survive_a_round_trip_through_every_linear_door(two_gpus: Card) -> None:
    two_gpus.client().call(linear_doors)


def linear_doors(cuda: Cuda) -> None:
    here = cuda.context()
    there = c.c_void_p()
    cuda.cuCtxCreate_v2(c.byref(there), 0, 1)
    n = MIB + 3
    other = cuda.alloc(n)
    cuda.cuCtxPopCurrent_v2(None)
    stream = cuda.stream()
    a, b = cuda.alloc(n), cuda.alloc(n)
    size = Size(n)

    def host(data: bytes = b"") -> Any:
        return c.create_string_buffer(data, n)

    def through(door: Callable[[Any, Any], None], seed: int) -> None:
        """`door` copies a host buffer to a host buffer, somehow."""
        data = pattern(n, seed)
        back = host()
        door(host(data), back)
        cuda.cuCtxSynchronize()
        assert back.raw == data, f"door {seed}"

    def address(buffer: Any) -> U64:
        return U64(c.addressof(buffer))

    def plain(src: Any, dst: Any) -> None:
        cuda.cuMemcpyHtoD_v2(U64(a), src, size)
        cuda.cuMemcpyDtoD_v2(U64(b), U64(a), size)
        cuda.cuMemcpyDtoH_v2(dst, U64(b), size)

    def queued(src: Any, dst: Any) -> None:
        cuda.cuMemcpyHtoDAsync_v2(U64(a), src, size, stream)
        cuda.cuMemcpyDtoDAsync_v2(U64(b), U64(a), size, stream)
        cuda.cuMemcpyDtoHAsync_v2(dst, U64(b), size, stream)

    def unified(src: Any, dst: Any) -> None:
        cuda.cuMemcpy(U64(a), address(src), size)
        cuda.cuMemcpy(U64(b), U64(a), size)
        cuda.cuMemcpyAsync(address(dst), U64(b), size, stream)

    def host_to_host(src: Any, dst: Any) -> None:
        cuda.cuMemcpy(address(dst), address(src), size)

    def peer(src: Any, dst: Any) -> None:
        put(cuda, a, src.raw)
        cuda.cuMemcpyPeer(U64(other), there, U64(a), here, size)
        cuda.cuMemcpyPeerAsync(U64(b), here, U64(other), there, size, stream)
        dst.raw = get(cuda, b, n)

    def managed(src: Any, dst: Any) -> None:
        pointer = U64()
        cuda.cuMemAllocManaged(c.byref(pointer), size, 1)
        put(cuda, pointer.value, src.raw)
        cuda.cuMemPrefetchAsync(pointer, size, -1, stream)
        cuda.cuMemPrefetchAsync_v2(pointer, size, Location(1, 0), 0, stream)
        cuda.cuMemAdvise(pointer, size, 1, 0)
        cuda.cuMemAdvise_v2(pointer, size, 3, Location(1, 0))
        cuda.cuCtxSynchronize()
        dst.raw = c.string_at(pointer.value, n)  # the host reads it where it is
        cuda.cuMemFree_v2(pointer)

    def pinned(src: Any, dst: Any) -> None:
        page, seen = c.c_void_p(), U64()
        cuda.cuMemHostAlloc(c.byref(page), size, 2)
        cuda.cuMemHostGetDevicePointer_v2(c.byref(seen), page, 0)
        c.memmove(page, src, n)
        cuda.cuMemcpyDtoD_v2(U64(a), seen, size)
        dst.raw = get(cuda, a, n)
        cuda.cuMemFreeHost(page)

    def shared_array(src: Any, dst: Any) -> None:
        one, two = array3d(cuda, n, 0, 0), array3d(cuda, n, 0, 0)
        cuda.cuMemcpyHtoA_v2(one, Size(0), src, size)
        cuda.cuMemcpyAtoA_v2(two, Size(0), one, Size(0), size)
        cuda.cuMemcpyAtoD_v2(U64(a), two, Size(0), size)
        cuda.cuMemcpyDtoA_v2(one, Size(1), U64(a), Size(n - 1))
        cuda.cuMemcpyAtoH_v2(dst, two, Size(0), size)
        assert get(cuda, a, n) == dst.raw
        cuda.cuMemcpyHtoAAsync_v2(one, Size(0), src, size, stream)
        cuda.cuMemcpyAtoHAsync_v2(dst, one, Size(0), size, stream)
        cuda.cuArrayDestroy(one)
        cuda.cuArrayDestroy(two)

    doors = [plain, queued, unified, host_to_host, peer, managed, pinned]
    for seed, door in enumerate(doors):
        through(door, seed)
    n = 100_003  # what fits an array's width
    size = Size(n)
    through(shared_array, 99)


def test_a_box_goes_where_the_reference_says_whatever_its_ends(gpu: Card) -> None:
    gpu.client().call(boxes, 300)


def boxes(cuda: Cuda, count: int) -> None:
    """Random boxes between host, device and arrays, through 2D, 3D and peer forms, against plain Python."""
    context = cuda.context()
    rng = random.Random(7)
    stream = cuda.stream()
    for number in range(count):
        flat = rng.random() < 0.5
        full = [rng.randint(1, 40), rng.randint(1, 12), 1 if flat else rng.randint(1, 6)]
        extent = [rng.randint(1, limit) for limit in full]
        images: list[bytearray] = []
        offsets: list[list[int]] = []
        copy = Copy2D() if flat else Copy3D()
        handles: list[tuple[int, Any]] = []
        keep: list[Any] = []
        for side in ("src", "dst"):
            offset = [rng.randint(0, a - b) for a, b in zip(full, extent, strict=True)]
            kind = rng.choice([HOST, DEVICE, ARRAY, UNIFIED])
            pitch = full[0] + (0 if kind == ARRAY else rng.choice([0, 5]))
            rows = full[1] + (0 if kind == ARRAY or flat else rng.choice([0, 2]))
            data = pattern(pitch * rows * full[2], number * 2 + (side == "dst"))
            setattr(copy, side + "Type", kind)
            setattr(copy, side + "X", offset[0])
            setattr(copy, side + "Y", offset[1])
            setattr(copy, side + "Pitch", pitch)
            if not flat:
                setattr(copy, side + "Z", offset[2])
                setattr(copy, side + "Rows", rows)
                setattr(copy, side + "Context", context)
            at: Any
            if kind == ARRAY:
                at = array3d(cuda, full[0], full[1], 0 if flat else full[2])
                cuda.cuMemcpyHtoA_v2(at, Size(0), data, Size(len(data)))
                setattr(copy, side + "Array", at)
            elif kind == DEVICE or (kind == UNIFIED and rng.random() < 0.5):
                at = cuda.alloc(len(data))
                put(cuda, at, data)
                setattr(copy, side + "Device", at)
                kind = DEVICE
            else:
                at = c.create_string_buffer(data, len(data))
                keep.append(at)
                name = "Host" if kind == HOST else "Device"
                setattr(copy, side + name, c.addressof(at))
                kind = HOST
            handles.append((kind, at))
            images.append(bytearray(data))
            offsets.append([offset[0], offset[1], offset[2], pitch, rows])
        copy.Width, copy.Height = extent[0], extent[1]
        if not flat:
            copy.Depth = extent[2]
        if flat:
            doors = ["cuMemcpy2D_v2", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DAsync_v2"]
        else:
            doors = ["cuMemcpy3D_v2", "cuMemcpy3DAsync_v2", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync"]
        door = rng.choice(doors)
        getattr(cuda, door)(c.byref(copy), *([stream] if "Async" in door else []))
        cuda.cuCtxSynchronize()
        (sx, sy, sz, sp, sr), (dx, dy, dz, dp, dr) = offsets
        for z in range(extent[2]):
            for y in range(extent[1]):
                source = ((sz + z) * sr + sy + y) * sp + sx
                target = ((dz + z) * dr + dy + y) * dp + dx
                images[1][target : target + extent[0]] = images[0][source : source + extent[0]]
        for (kind, at), image in zip(handles, images, strict=True):
            if kind == HOST:
                got = at.raw
            elif kind == DEVICE:
                got = get(cuda, at, len(image))
                cuda.cuMemFree_v2(U64(at))
            else:
                buffer = c.create_string_buffer(len(image))
                cuda.cuMemcpyAtoH_v2(buffer, at, Size(0), Size(len(image)))
                got = buffer.raw
                cuda.cuArrayDestroy(at)
            assert got == bytes(image), f"box {number} through {door}"


def test_fills_write_their_pattern_and_nothing_beside_it(gpu: Card) -> None:
    gpu.client().call(fills)


def fills(cuda: Cuda) -> None:
    cuda.context()
    stream = cuda.stream()
    size = 8 * KIB
    at = cuda.alloc(size)
    before = pattern(size)
    for bits, kind, value in (
        (8, c.c_ubyte, 0xA7),
        (16, c.c_ushort, 0xBEEF),
        (32, c.c_uint, 0xDEADBEEF),
    ):
        wide = bits // 8
        element = value.to_bytes(wide, "little")
        for asynchronous in (False, True):
            tail = [stream] if asynchronous else []
            suffix = "Async" if asynchronous else "_v2"
            put(cuda, at, before)
            getattr(cuda, f"cuMemsetD{bits}{suffix}")(U64(at + 64), kind(value), Size(100), *tail)
            expected = before[:64] + element * 100 + before[64 + wide * 100 :]
            assert get(cuda, at, size) == expected, f"D{bits}{suffix}"
            put(cuda, at, before)
            getattr(cuda, f"cuMemsetD2D{bits}{suffix}")(
                U64(at + 64), Size(256), kind(value), Size(20), Size(9), *tail
            )
            image = bytearray(before)
            for row in range(9):
                image[64 + row * 256 : 64 + row * 256 + 20 * wide] = element * 20
            assert get(cuda, at, size) == bytes(image), f"D2D{bits}{suffix}"


def test_a_copy_takes_the_time_its_way_allows(gpu: Card) -> None:
    took = gpu.client().call(copy_times)
    size = 8 * MIB
    bandwidth_ms = size / 3350000 / 1000
    assert took["fill"] == pytest.approx(bandwidth_ms, rel=1e-3)
    assert took["device"] == pytest.approx(2 * bandwidth_ms, rel=1e-3)
    assert took["to device"] == pytest.approx(size / 25e6, rel=1e-3)
    assert took["to host"] == pytest.approx(size / 25e6, rel=1e-3)


def copy_times(cuda: Cuda) -> dict[str, float]:
    cuda.context()
    stream, size = cuda.stream(), Size(8 * MIB)
    a, b = U64(cuda.alloc(size.value)), U64(cuda.alloc(size.value))
    buffer = c.create_string_buffer(size.value)
    hold = cuda.kernel()
    doors: dict[str, Callable[[], None]] = {
        "fill": lambda: cuda.cuMemsetD8Async(a, c.c_ubyte(1), size, stream),
        "device": lambda: cuda.cuMemcpyDtoDAsync_v2(b, a, size, stream),
        "to device": lambda: cuda.cuMemcpyHtoDAsync_v2(a, buffer, size, stream),
        "to host": lambda: cuda.cuMemcpyDtoHAsync_v2(buffer, a, size, stream),
    }
    took = {}
    for name, door in doors.items():
        before, after = cuda.event(), cuda.event()
        cuda.launch(hold, stream, 400_000_000)  # the host's own memcpy is over when this is
        cuda.cuEventRecord(before, stream)
        door()
        cuda.cuEventRecord(after, stream)
        cuda.cuStreamSynchronize(stream)
        took[name] = cuda.elapsed_ms(before, after)
    return took


def test_a_captured_copy_moves_nothing_until_its_graph_is_launched(gpu: Card) -> None:
    gpu.client().call(captured_copies)


def captured_copies(cuda: Cuda) -> None:
    cuda.context()
    stream, n = cuda.stream(), 4096
    a, b = cuda.alloc(n), cuda.alloc(n)
    data = pattern(n)
    source = c.create_string_buffer(data, n)
    put(cuda, a, bytes(n))
    put(cuda, b, bytes(n))
    cuda.cuStreamBeginCapture_v2(stream, 0)
    cuda.cuMemcpyHtoDAsync_v2(U64(a), source, Size(n), stream)
    cuda.cuMemcpyDtoDAsync_v2(U64(b), U64(a), Size(n), stream)
    cuda.cuMemsetD8Async(U64(a), c.c_ubyte(9), Size(n), stream)
    assert cuda.try_("cuMemcpyDtoH_v2", source, U64(a), Size(n)) in (
        CAPTURE_IMPLICIT,
        CAPTURE_UNSUPPORTED,
    )
    assert cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(n)) == CAPTURE_UNSUPPORTED
    graph, executable = c.c_void_p(), c.c_void_p()
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    assert get(cuda, b, n) == bytes(n)
    nodes = Size()
    cuda.cuGraphGetNodes(graph, None, c.byref(nodes))
    assert nodes.value == 3
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuStreamSynchronize(stream)
    assert get(cuda, b, n) == data
    assert get(cuda, a, n) == b"\x09" * n


def test_a_copy_node_is_the_same_copy_each_time_its_graph_is_launched(gpu: Card) -> None:
    gpu.client().call(copy_nodes)


def copy_nodes(cuda: Cuda) -> None:
    context, n = cuda.context(), 3 * MIB
    stream, graph, executable, node = cuda.stream(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    a, b = cuda.alloc(n), cuda.alloc(n)
    copy = Copy3D(
        srcType=DEVICE, srcDevice=a, dstType=DEVICE, dstDevice=b, Width=n, Height=1, Depth=1
    )
    cuda.cuGraphCreate(c.byref(graph), 0)
    cuda.cuGraphAddMemcpyNode(c.byref(node), graph, None, Size(0), c.byref(copy), context)
    copy.srcDevice = 64
    wrong = cuda.try_(
        "cuGraphAddMemcpyNode", c.byref(c.c_void_p()), graph, None, Size(0), c.byref(copy), context
    )
    assert wrong == INVALID_VALUE
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    for seed in (1, 2):
        data = pattern(n, seed)
        put(cuda, a, data)
        cuda.cuGraphLaunch(executable, stream)
        cuda.cuStreamSynchronize(stream)
        assert get(cuda, b, n) == data


def test_memory_allocated_in_a_graph_is_charged_while_a_launch_has_it(gpu: Card) -> None:
    gpu.client().call(captured_allocations)


def captured_allocations(cuda: Cuda) -> None:
    cuda.context()
    stream, n = cuda.stream(), 10 * MIB
    before = used(cuda)
    pointer, graph, executable = U64(), c.c_void_p(), c.c_void_p()
    cuda.cuStreamBeginCapture_v2(stream, 0)
    cuda.cuMemAllocAsync(c.byref(pointer), Size(n), stream)
    cuda.cuMemsetD8Async(pointer, c.c_ubyte(5), Size(n), stream)
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    assert used(cuda) == before
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    assert used(cuda) == before + n
    assert get(cuda, pointer.value, 16) == b"\x05" * 16
    assert cuda.try_("cuGraphLaunch", executable, stream) == 1, "its memory is still out"
    cuda.cuMemFreeAsync(pointer, stream)
    assert (graph_memory(cuda, GRAPH_USED), graph_memory(cuda, GRAPH_RESERVED)) == (0, n)
    assert used(cuda) == before + n, "kept for the next launch"
    cuda.cuGraphLaunch(executable, stream)
    assert used(cuda) == before + n
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before + n, "in use"
    cuda.cuMemFreeAsync(pointer, stream)
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before
    assert (graph_memory(cuda, GRAPH_RESERVED), graph_memory(cuda, GRAPH_RESERVED_HIGH)) == (0, n)
    cuda.cuDeviceSetGraphMemAttribute(0, GRAPH_RESERVED_HIGH, c.byref(U64(0)))
    assert graph_memory(cuda, GRAPH_RESERVED_HIGH) == 0
    assert cuda.try_("cuDeviceSetGraphMemAttribute", 0, GRAPH_RESERVED, c.byref(U64(0))) == 1


GRAPH_USED, GRAPH_RESERVED, GRAPH_RESERVED_HIGH, AUTO_FREE = 0, 2, 3, 1


def graph_memory(cuda: Cuda, attribute: int) -> int:
    value = U64()
    cuda.cuDeviceGetGraphMemAttribute(0, attribute, c.byref(value))
    return value.value


class AllocNode(c.Structure):
    _fields_ = [
        ("props", PoolProps),
        ("access", c.c_void_p),
        ("accesses", Size),
        ("bytes", Size),
        ("at", U64),
    ]


def alloc_node(
    cuda: Cuda, graph: c.c_void_p, size: int, after: c.c_void_p | None = None
) -> AllocNode:
    node, params = c.c_void_p(), AllocNode()
    params.props.type, params.props.location = 1, Location(1, 0)
    params.bytes = size
    before = (c.c_void_p * 1)(after) if after else None
    cuda.cuGraphAddMemAllocNode(
        c.byref(node), graph, before, Size(1 if after else 0), c.byref(params)
    )
    return params


def test_graphs_take_what_their_nodes_need_at_one_time(gpu: Card) -> None:
    gpu.client().call(graph_nodes)


def graph_nodes(cuda: Cuda) -> None:
    cuda.context()
    stream, before, n = cuda.stream(), used(cuda), 10 * MIB
    graph, executable, node = c.c_void_p(), c.c_void_p(), c.c_void_p()
    cuda.cuGraphCreate(c.byref(graph), 0)
    for _ in range(3):  # one after another: the same memory each time
        params = alloc_node(cuda, graph, n)
        cuda.cuGraphAddMemFreeNode(c.byref(node), graph, None, Size(0), U64(params.at))
    last = alloc_node(cuda, graph, n)
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(AUTO_FREE))
    cuda.cuGraphUpload(executable, stream)
    assert (used(cuda) - before, graph_memory(cuda, GRAPH_USED)) == (n, 0)
    for _ in range(2):  # what the last launch left is freed by the next
        cuda.cuGraphLaunch(executable, stream)
        assert (used(cuda) - before, graph_memory(cuda, GRAPH_USED)) == (n, n)
    cuda.cuMemFree_v2(U64(last.at))
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before
    huge = c.c_void_p()
    cuda.cuGraphCreate(c.byref(huge), 0)
    for _ in range(5):
        alloc_node(cuda, huge, 20 << 30)
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), huge, U64(0))
    assert cuda.try_("cuGraphUpload", executable, stream) == 2
    assert cuda.try_("cuGraphLaunch", executable, stream) == 2
    assert used(cuda) == before


# --- charges ----------------------------------------------------------------------------------------------------------


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


def observe(cuda: Cuda) -> int:
    cuda.context()
    return used(cuda)


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


# --- physical memory and addresses ------------------------------------------------------------------------------------


def prop(handles: int = 0, device: int = 0) -> Prop:
    return Prop(1, handles, Location(1, device))


def create(cuda: Cuda, size: int, handles: int = 0) -> U64:
    handle = U64()
    cuda.cuMemCreate(c.byref(handle), Size(size), c.byref(prop(handles)), U64(0))
    return handle


def reserve(cuda: Cuda, size: int, alignment: int = 0) -> int:
    at = U64()
    cuda.cuMemAddressReserve(c.byref(at), Size(size), Size(alignment), U64(0), U64(0))
    return at.value


def map_at(cuda: Cuda, at: int, size: int, handle: U64, access: int = 3) -> None:
    cuda.cuMemMap(U64(at), Size(size), Size(0), handle, U64(0))
    if access:
        cuda.cuMemSetAccess(U64(at), Size(size), c.byref(Access(Location(1, 0), access)), Size(1))


def test_a_mapping_keeps_released_memory_charged_until_it_is_unmapped(gpu: Card) -> None:
    gpu.client().call(map_then_release, 0)
    gpu.client().call(map_then_release, POSIX_FD)


def map_then_release(cuda: Cuda, handles: int) -> None:
    cuda.context()
    start, size = used(cuda), 4 * MIB
    at = reserve(cuda, 4 * size)
    assert used(cuda) == start  # addresses are free
    handle = create(cuda, size, handles)
    map_at(cuda, at, size, handle)
    map_at(cuda, at + size, size, handle)
    cuda.cuMemRelease(handle)
    assert cuda.try_("cuMemRelease", handle) == INVALID_VALUE
    assert used(cuda) == start + size
    data = pattern(size)
    put(cuda, at, data)
    assert get(cuda, at + size, size) == data  # two mappings, one memory
    base, length = U64(), Size()
    cuda.cuMemGetAddressRange_v2(c.byref(base), c.byref(length), U64(at + size + 77))
    assert (base.value, length.value) == (at + size, size)
    again = U64()
    cuda.cuMemRetainAllocationHandle(c.byref(again), c.c_void_p(at + 5))
    assert again.value == handle.value
    cuda.cuMemUnmap(U64(at), Size(2 * size))
    assert used(cuda) == start + size
    assert (
        cuda.try_("cuMemcpyDtoH_v2", c.create_string_buffer(4), U64(at), Size(4)) == INVALID_VALUE
    )
    map_at(cuda, at + 2 * size, size, again)
    assert get(cuda, at + 2 * size, size) == data
    cuda.cuMemUnmap(U64(at + 2 * size), Size(size))
    cuda.cuMemRelease(again)
    assert used(cuda) == start
    fresh = create(cuda, size, handles)
    map_at(cuda, at, size, fresh)
    assert get(cuda, at, size) == bytes(size)  # never another's bytes
    cuda.cuMemUnmap(U64(at), Size(size))
    cuda.cuMemRelease(fresh)
    cuda.cuMemAddressFree(U64(at), Size(4 * size))
    assert cuda.try_("cuMemAddressFree", U64(at), Size(4 * size)) == INVALID_VALUE
    assert used(cuda) == start


def test_an_address_used_again_does_not_show_what_was_mapped_there(gpu: Card) -> None:
    gpu.client().call(addresses_used_again)


def addresses_used_again(cuda: Cuda) -> None:
    cuda.context()
    size = 6 * MIB
    for handles in (0, POSIX_FD):
        handle, data = create(cuda, size, handles), pattern(size)
        at = reserve(cuda, size)
        map_at(cuda, at, size, handle)
        put(cuda, at, data)
        cuda.cuMemUnmap(U64(at), Size(size))
        cuda.cuMemAddressFree(U64(at), Size(size))
        plain = cuda.alloc(size)
        assert plain == at, "this test needs the address again"
        assert get(cuda, plain, size) == bytes(size)
        put(cuda, plain, pattern(size, 2))
        elsewhere = reserve(cuda, size)
        map_at(cuda, elsewhere, size, handle)
        assert get(cuda, elsewhere, size) == data


def test_addresses_mappings_and_access_have_the_drivers_rules(gpu: Card) -> None:
    gpu.client().call(vmm_rules)


def vmm_rules(cuda: Cuda) -> None:
    cuda.context()
    start = used(cuda)
    granularity, flags = Size(), c.c_ulonglong()
    for option in (0, 1):
        cuda.cuMemGetAllocationGranularity(c.byref(granularity), c.byref(prop()), option)
        assert granularity.value == PAGE
    assert reserve(cuda, PAGE, GIB) % GIB == 0
    at = reserve(cuda, 8 * PAGE)
    handle, small = create(cuda, 2 * PAGE), create(cuda, PAGE)

    def mapping(where: int, size: int, offset: int, what: U64) -> int:
        return cuda.try_("cuMemMap", U64(where), Size(size), Size(offset), what, U64(0))

    table = {
        "not reserved": mapping(cuda.alloc(4 * PAGE), PAGE, 0, small),
        "half a page": mapping(at, PAGE // 2, 0, small),
        "beside a page": mapping(at + 512, PAGE, 0, small),
        "an offset": mapping(at, PAGE, PAGE, handle),
        "more than there is": mapping(at, 2 * PAGE, 0, small),
        "past the end": mapping(at + 7 * PAGE, 2 * PAGE, 0, handle),
        "no handle": mapping(at, PAGE, 0, U64(0)),
        "a wrong handle": mapping(at, PAGE, 0, U64(small.value + 1)),
        "no size": cuda.try_("cuMemCreate", c.byref(U64()), Size(0), c.byref(prop()), U64(0)),
        "an odd size": cuda.try_(
            "cuMemCreate", c.byref(U64()), Size(PAGE + 1), c.byref(prop()), U64(0)
        ),
        "no such type": cuda.try_(
            "cuMemCreate", c.byref(U64()), Size(PAGE), c.byref(Prop()), U64(0)
        ),
        "odd addresses": cuda.try_(
            "cuMemAddressReserve", c.byref(U64()), Size(5), Size(0), U64(0), U64(0)
        ),
        "odd alignment": cuda.try_(
            "cuMemAddressReserve", c.byref(U64()), Size(PAGE), Size(3), U64(0), U64(0)
        ),
        "nothing mapped": cuda.try_("cuMemUnmap", U64(at), Size(PAGE)),
        "access to nothing": cuda.try_(
            "cuMemSetAccess", U64(at), Size(PAGE), c.byref(Access(Location(1, 0), 3)), Size(1)
        ),
        "access of nothing": cuda.try_(
            "cuMemGetAccess", c.byref(flags), c.byref(Location(1, 0)), U64(at)
        ),
        "retain nothing": cuda.try_("cuMemRetainAllocationHandle", c.byref(U64()), c.c_void_p(at)),
        "not exportable": cuda.try_(
            "cuMemExportToShareableHandle", c.byref(c.c_int()), small, POSIX_FD, U64(0)
        ),
        "no descriptor": cuda.try_(
            "cuMemImportFromShareableHandle", c.byref(U64()), c.c_void_p(999), POSIX_FD
        ),
    }
    assert {what: code for what, code in table.items() if code != INVALID_VALUE} == {}
    far = cuda.try_("cuMemCreate", c.byref(U64()), Size(PAGE), c.byref(prop(0, 7)), U64(0))
    assert far == INVALID_DEVICE
    map_at(cuda, at, 2 * PAGE, handle, access=0)
    assert mapping(at + PAGE, PAGE, 0, small) == INVALID_VALUE  # taken
    assert cuda.try_("cuMemcpyHtoD_v2", U64(at), b"1234", Size(4)) == INVALID_VALUE  # no access yet
    cuda.cuMemGetAccess(c.byref(flags), c.byref(Location(1, 0)), U64(at + 3))
    assert flags.value == 0
    map_at(cuda, at + 2 * PAGE, PAGE, small, access=0)
    cuda.cuMemSetAccess(U64(at), Size(3 * PAGE), c.byref(Access(Location(1, 0), 3)), Size(1))
    cuda.cuMemGetAccess(c.byref(flags), c.byref(Location(1, 0)), U64(at + 3))
    assert flags.value == 3
    data = pattern(3 * PAGE)
    put(cuda, at, data)  # over the seam
    assert get(cuda, at, 3 * PAGE) == data
    assert cuda.try_("cuMemUnmap", U64(at), Size(PAGE)) == INVALID_VALUE  # half a mapping
    assert cuda.try_("cuMemAddressFree", U64(at), Size(8 * PAGE)) == INVALID_VALUE  # still in use
    told = Prop()
    cuda.cuMemGetAllocationPropertiesFromHandle(c.byref(told), small)
    assert (told.type, told.handles, told.location.type, told.location.id) == (1, 0, 1, 0)
    cuda.cuMemUnmap(U64(at), Size(3 * PAGE))
    cuda.cuMemRelease(handle)
    cuda.cuMemRelease(small)
    cuda.cuMemAddressFree(U64(at), Size(8 * PAGE))
    assert used(cuda) == start + 4 * PAGE


def test_exported_memory_is_one_memory_in_two_processes_and_charged_once(
    gpu: Card, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    with listening(path):
        exporter, importer = gpu.client(), gpu.client()
        importer.call(observe)
        before = importer.call(used)
        waiting = importer.submit(receive_memory, path)
        data = exporter.call(send_memory, path)
        exporters_context = exporter.call(used) - before - 4 * MIB
        assert waiting.result(60) == data
        assert exporters_context > 0
        assert importer.call(used) == before + exporters_context + 4 * MIB
        importer.call(write_there, b"back again")
        assert exporter.call(read_there, 10) == b"back again"
        exporter.call(drop_there)
        assert importer.call(used) == before + exporters_context
        assert importer.call(read_there, 10) == b"back again"  # its reference keeps the bytes
        importer.call(drop_there)


@contextmanager
def listening(path: str) -> Iterator[None]:
    """Passes one message with its descriptor from the first who connects as sender to the receiver."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(2)

    def relay() -> None:
        ends = {}
        for _ in range(2):
            end, _ = server.accept()
            ends[end.recv(1)] = end
        message, descriptors, _, _ = socket.recv_fds(ends[b"s"], 64, 1)
        socket.send_fds(ends[b"r"], [message], descriptors)
        os.close(descriptors[0])

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    yield
    thread.join(10)
    server.close()


_there: dict[str, Any] = {}


def map_there(cuda: Cuda, handle: U64, size: int) -> None:
    at = reserve(cuda, size)
    map_at(cuda, at, size, handle)
    _there.update(at=at, size=size, handle=handle)


def send_memory(cuda: Cuda, path: str) -> bytes:
    cuda.context()
    handle, fd = create(cuda, 4 * MIB, POSIX_FD), c.c_int()
    map_there(cuda, handle, 4 * MIB)
    data = pattern(4 * MIB)
    put(cuda, _there["at"], data)
    cuda.cuMemExportToShareableHandle(c.byref(fd), handle, POSIX_FD, U64(0))
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        end.send(b"s")
        socket.send_fds(end, [b"memory"], [fd.value])
    again, before = U64(), used(cuda)
    cuda.cuMemImportFromShareableHandle(c.byref(again), c.c_void_p(fd.value), POSIX_FD)
    cuda.cuMemRelease(again)  # in its own process it is one more name
    assert used(cuda) == before
    os.close(fd.value)
    return data


def receive_memory(cuda: Cuda, path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(path)
        end.send(b"r")
        _, descriptors, _, _ = socket.recv_fds(end, 64, 1)
    handle = U64()
    cuda.cuMemImportFromShareableHandle(c.byref(handle), c.c_void_p(descriptors[0]), POSIX_FD)
    os.close(descriptors[0])
    map_there(cuda, handle, 4 * MIB)
    return get(cuda, _there["at"], 4 * MIB)


def write_there(cuda: Cuda, data: bytes) -> None:
    put(cuda, _there["at"], data)


def read_there(cuda: Cuda, size: int) -> bytes:
    return get(cuda, _there["at"], size)


def drop_there(cuda: Cuda) -> None:
    cuda.cuMemUnmap(U64(_there["at"]), Size(_there["size"]))
    cuda.cuMemRelease(_there["handle"])
    cuda.cuMemAddressFree(U64(_there["at"]), Size(_there["size"]))


# --- pools ------------------------------------------------------------------------------------------------------------

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
    cuda.launch(cuda.kernel(), stream, 200_000_000)
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


# --- between processes ------------------------------------------------------------------------------------------------


def test_ipc_memory_is_the_same_bytes_in_both_processes_and_charged_to_its_owner(gpu: Card) -> None:
    owner, guest = gpu.client(), gpu.client()
    guest.call(observe)
    owner.call(observe)
    before = guest.call(used)
    for size in (100, 9 * MIB):
        ticket, data = owner.call(export, size)
        charge = guest.call(used) - before
        assert charge == (PAGE if size < MIB else PAGE + 10 * MIB)
        assert guest.call(open_ticket, ticket, size) == data
        assert guest.call(used) - before == charge
        guest.call(write_there, b"hello")
        assert owner.call(read_there, 5) == b"hello"
        assert owner.call(open_own, ticket) == INVALID_CONTEXT
        guest.call(close_ticket)
        owner.call(free_there)
        assert guest.call(used) == before


def export(cuda: Cuda, size: int) -> tuple[bytes, bytes]:
    ticket = Ticket()
    neighbour = cuda.alloc(size if size < MIB else 1)  # a small one does not begin its page
    at = cuda.alloc(size)
    data = pattern(size)
    put(cuda, at, data)
    cuda.cuIpcGetMemHandle(c.byref(ticket), U64(at))
    _there.update(at=at, neighbour=neighbour)
    return bytes(ticket), data


def open_ticket(cuda: Cuda, ticket: bytes, size: int) -> bytes:
    handle, at, again = Ticket.from_buffer_copy(ticket), U64(), U64()
    assert (
        cuda.try_("cuIpcOpenMemHandle_v2", c.byref(at), handle, 0) == INVALID_VALUE
    )  # the flag is required
    cuda.cuIpcOpenMemHandle_v2(c.byref(at), handle, LAZY_PEER)
    cuda.cuIpcOpenMemHandle_v2(c.byref(again), handle, LAZY_PEER)
    assert at.value == again.value
    cuda.cuIpcCloseMemHandle(again)
    _there.update(at=at.value)
    assert cuda.try_("cuMemFree_v2", at) == INVALID_VALUE
    assert cuda.try_("cuIpcGetMemHandle", c.byref(Ticket()), at) == INVALID_VALUE
    return get(cuda, at.value, size)


def close_ticket(cuda: Cuda) -> None:
    cuda.cuIpcCloseMemHandle(U64(_there["at"]))
    assert cuda.try_("cuIpcCloseMemHandle", U64(_there["at"])) == INVALID_VALUE
    assert (
        cuda.try_("cuMemcpyDtoH_v2", c.create_string_buffer(4), U64(_there["at"]), Size(4))
        == INVALID_VALUE
    )


def open_own(cuda: Cuda, ticket: bytes) -> int:
    return cuda.try_(
        "cuIpcOpenMemHandle_v2", c.byref(U64()), Ticket.from_buffer_copy(ticket), LAZY_PEER
    )


def free_there(cuda: Cuda) -> None:
    cuda.cuMemFree_v2(U64(_there["at"]))
    cuda.cuMemFree_v2(U64(_there["neighbour"]))


def test_a_ticket_is_worth_nothing_when_forged_or_its_owner_is_dead(gpu: Card) -> None:
    owner, guest = gpu.client(), gpu.client()
    owner.call(observe)
    guest.call(observe)
    ticket, _ = owner.call(export, PAGE)
    assert guest.call(open_own, bytes(64)) == INVALID_HANDLE
    owner.kill()
    owner.close()
    assert guest.call(open_own, ticket) == MAP_FAILED


# --- errors -----------------------------------------------------------------------------------------------------------


def test_mistakes_are_answered_with_the_drivers_own_errors(gpu: Card) -> None:
    wrong = gpu.client().call(mistakes)
    assert wrong == {}


def mistakes(cuda: Cuda) -> dict[str, tuple[int, int]]:
    """What answered another error than it should: name -> (got, wanted)."""
    four = c.create_string_buffer(4)
    cuda.cuInit(0)
    no_context = {
        "alloc": cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(4)),
        "copy": cuda.try_("cuMemcpyHtoD_v2", U64(1), four, Size(4)),
        "info": cuda.try_("cuMemGetInfo_v2", c.byref(Size()), c.byref(Size())),
        "array": cuda.try_(
            "cuArrayCreate_v2", c.byref(c.c_void_p()), c.byref(Array2D(1, 1, UINT8, 1))
        ),
        "pool": cuda.try_("cuMemAllocAsync", c.byref(U64()), Size(1), None),
        "ticket": cuda.try_("cuIpcGetMemHandle", c.byref(Ticket()), U64(1)),
    }
    wrong = {
        f"no context: {k}": (v, INVALID_CONTEXT)
        for k, v in no_context.items()
        if v != INVALID_CONTEXT
    }
    context = cuda.context()
    a = cuda.alloc(4 * MIB)
    freed = cuda.alloc(4 * MIB)
    small = cuda.alloc(600)
    freed_small = cuda.alloc(600)
    gone, array = array3d(cuda, 16, 16, 0), array3d(cuda, 16, 16, 0)
    cuda.cuMemFree_v2(U64(freed))
    cuda.cuMemFree_v2(U64(freed_small))
    host = c.create_string_buffer(8192)
    level, mip = c.c_void_p(), c.c_void_p()
    cuda.cuMipmappedArrayCreate(c.byref(mip), c.byref(Array3D(16, 16, 0, UINT8, 1, 0)), 2)
    cuda.cuMipmappedArrayGetLevel(c.byref(level), mip, 1)
    cuda.cuArrayDestroy(gone)  # last: the next array may well get the same handle

    def shaped(**fields: int) -> Any:
        shape = Array3D(16, 16, 0, UINT8, 1, 0)
        for name, value in fields.items():
            setattr(shape, name, value)
        return c.byref(shape)

    def flat(**fields: Any) -> Any:
        copy = Copy2D(srcType=DEVICE, srcDevice=a, srcPitch=64, dstType=ARRAY, Width=16, Height=16)
        copy.dstArray = array
        for name, value in fields.items():
            setattr(copy, name, value)
        return c.byref(copy)

    def make(shape: Any) -> tuple[Any, ...]:
        return ("cuArray3DCreate_v2", c.byref(c.c_void_p()), shape)

    table: list[tuple[int, tuple[Any, ...]]] = [
        (INVALID_VALUE, ("cuMemAlloc_v2", None, Size(4))),
        (INVALID_VALUE, ("cuMemAlloc_v2", c.byref(U64()), Size(0))),
        (INVALID_VALUE, ("cuMemFree_v2", U64(freed))),
        (INVALID_VALUE, ("cuMemFree_v2", U64(freed_small))),
        (INVALID_VALUE, ("cuMemFree_v2", U64(a + 512))),
        (INVALID_VALUE, ("cuMemFree_v2", U64(c.addressof(host)))),
        (0, ("cuMemFree_v2", U64(0))),
        (NOT_FOUND, ("cuMemGetAddressRange_v2", c.byref(U64()), c.byref(Size()), U64(freed))),
        (INVALID_VALUE, ("cuMemAllocManaged", c.byref(U64()), Size(4), 0)),
        (INVALID_VALUE, ("cuMemcpyHtoD_v2", U64(freed), four, Size(4))),
        (INVALID_VALUE, ("cuMemcpyHtoD_v2", U64(freed_small), four, Size(4))),
        (INVALID_VALUE, ("cuMemcpyHtoD_v2", U64(0), four, Size(4))),
        (INVALID_VALUE, ("cuMemcpyHtoD_v2", U64(a), None, Size(4))),
        (INVALID_VALUE, ("cuMemcpyDtoH_v2", host, U64(a + 4 * MIB - 2), Size(4))),
        (INVALID_VALUE, ("cuMemcpyDtoH_v2", host, U64(small + 1022), Size(4))),
        (INVALID_VALUE, ("cuMemcpyDtoD_v2", U64(a), U64(c.addressof(host)), Size(4))),
        (0, ("cuMemcpyHtoD_v2", U64(a), None, Size(0))),
        (INVALID_CONTEXT, ("cuMemcpyPeer", U64(a), None, U64(a + 64), context, Size(4))),
        (INVALID_HANDLE, ("cuMemcpyHtoA_v2", gone, Size(0), four, Size(4))),
        (INVALID_VALUE, ("cuMemcpyHtoA_v2", array, Size(254), four, Size(4))),
        (0, ("cuMemcpyHtoA_v2", array, Size(252), four, Size(4))),
        (INVALID_VALUE, ("cuMemcpy2D_v2", None)),
        (INVALID_VALUE, ("cuMemcpy2D_v2", flat(srcPitch=8))),
        (INVALID_VALUE, ("cuMemcpy2D_v2", flat(srcType=9))),
        (INVALID_VALUE, ("cuMemcpy2D_v2", flat(dstX=1))),
        (INVALID_VALUE, ("cuMemcpy2D_v2", flat(dstY=1))),
        (INVALID_VALUE, ("cuMemcpy2D_v2", flat(Height=17))),
        (0, ("cuMemcpy2D_v2", flat())),
        (INVALID_VALUE, ("cuMemcpy3D_v2", None)),
        (INVALID_VALUE, ("cuMemsetD16_v2", U64(a + 1), c.c_ushort(1), Size(4))),
        (INVALID_VALUE, ("cuMemsetD32_v2", U64(a + 2), c.c_uint(1), Size(4))),
        (INVALID_VALUE, ("cuMemsetD8_v2", U64(a), c.c_ubyte(1), Size(4 * MIB + 1))),
        (INVALID_VALUE, ("cuMemsetD2D8_v2", U64(a), Size(8), c.c_ubyte(1), Size(9), Size(2))),
        (INVALID_VALUE, make(shaped(width=0))),
        (INVALID_VALUE, make(shaped(channels=3))),
        (INVALID_VALUE, make(shaped(format=77))),
        (INVALID_VALUE, make(shaped(width=10**6))),
        (INVALID_VALUE, make(shaped(flags=CUBEMAP, depth=5))),
        (INVALID_VALUE, make(None)),
        (INVALID_HANDLE, ("cuArrayDestroy", gone)),
        (INVALID_HANDLE, ("cuArrayDestroy", None)),
        (INVALID_HANDLE, ("cuArrayDestroy", level)),
        (INVALID_HANDLE, ("cuArray3DGetDescriptor_v2", c.byref(Array3D()), gone)),
        (INVALID_VALUE, ("cuArrayGetMemoryRequirements", c.byref(Needs()), array, 0)),
        (INVALID_VALUE, ("cuMipmappedArrayGetLevel", c.byref(c.c_void_p()), mip, 2)),
        (INVALID_HANDLE, ("cuMipmappedArrayDestroy", None)),
        (INVALID_VALUE, ("cuMemPrefetchAsync", U64(a), Size(4), 0, None)),
        (INVALID_VALUE, ("cuMemAdvise", U64(a), Size(4), 1, 0)),
        (INVALID_VALUE, ("cuMemFreeHost", host)),
        (0, ("cuMemHostRegister_v2", host, Size(8192), 0)),
        (ALREADY_REGISTERED, ("cuMemHostRegister_v2", host, Size(8192), 0)),
        (0, ("cuMemHostUnregister", host)),
        (NOT_REGISTERED, ("cuMemHostUnregister", host)),
        (INVALID_VALUE, ("cuIpcGetMemHandle", c.byref(Ticket()), U64(freed))),
        (INVALID_VALUE, ("cuIpcCloseMemHandle", U64(a))),
        (NOT_SUPPORTED, ("cuIpcGetEventHandle", c.byref(Ticket()), cuda.event())),
        (OUT_OF_MEMORY, ("cuMemAlloc", c.byref(c.c_uint()), c.c_uint(4))),
        (INVALID_VALUE, ("cuMemFree", c.c_uint(4))),
        (INVALID_VALUE, ("cuMemcpyHtoD", c.c_uint(4), four, c.c_uint(4))),
    ]
    for number, (wanted, call) in enumerate(table):
        code = cuda.try_(*call)
        if code != wanted:
            wrong[f"{number}: {call[0]}"] = (code, wanted)
    return wrong


def test_arrays_describe_themselves(gpu: Card) -> None:
    gpu.client().call(descriptors)


def descriptors(cuda: Cuda) -> None:
    cuda.context()
    array = array3d(cuda, 30, 20, 12, FLOAT, 4, LAYERED)
    told, flat = Array3D(), Array2D()
    cuda.cuArray3DGetDescriptor_v2(c.byref(told), array)
    assert [getattr(told, name) for name, *_ in Array3D._fields_] == [30, 20, 12, FLOAT, 4, LAYERED]
    cuda.cuArrayGetDescriptor_v2(c.byref(flat), array)
    assert [getattr(flat, name) for name, *_ in Array2D._fields_] == [30, 20, FLOAT, 4]
    mip, level = c.c_void_p(), c.c_void_p()
    cuda.cuMipmappedArrayCreate(c.byref(mip), c.byref(Array3D(30, 20, 8, UINT8, 1, 0)), 3)
    sizes = []
    for i in range(3):
        cuda.cuMipmappedArrayGetLevel(c.byref(level), mip, i)
        cuda.cuArray3DGetDescriptor_v2(c.byref(told), level)
        sizes.append((told.width, told.height, told.depth))
        data = pattern(told.width * told.height * told.depth, i)
        back = c.create_string_buffer(len(data))
        cuda.cuMemcpyHtoA_v2(level, Size(0), data, Size(len(data)))
        cuda.cuMemcpyAtoH_v2(back, level, Size(0), Size(len(data)))
        assert back.raw == data
    assert sizes == [(30, 20, 8), (15, 10, 4), (7, 5, 2)]
    needs = Needs()
    later = array3d(cuda, 1000, 100, 0, FLOAT, 1, DEFERRED)
    cuda.cuArrayGetMemoryRequirements(c.byref(needs), later, 0)
    assert (needs.size, needs.alignment) == (-(-4096 * 100 // (64 * KIB)) * 64 * KIB, 64 * KIB)


def test_a_pointer_tells_what_it_is(gpu: Card) -> None:
    client: Client = gpu.client()
    client.call(pointers)
    with pytest.raises(CudaError):
        client.call(no_pointer)


def pointers(cuda: Cuda) -> None:
    cuda.context()
    page, kind, size = c.c_void_p(), c.c_uint(), Size()
    cuda.cuMemHostAlloc(c.byref(page), Size(5000), 0)
    cuda.cuPointerGetAttribute(c.byref(kind), 2, U64(page.value or 0))
    assert kind.value == HOST
    cuda.cuPointerGetAttribute(c.byref(size), 12, U64((page.value or 0) + 100))
    assert size.value == 5000
    at = cuda.alloc(3 * MIB)
    cuda.cuPointerGetAttribute(c.byref(kind), 2, U64(at + 7))
    assert kind.value == DEVICE
    cuda.cuPointerGetAttribute(c.byref(size), 12, U64(at + 7))
    assert size.value == 3 * MIB


def no_pointer(cuda: Cuda) -> None:
    cuda.cuPointerGetAttribute(c.byref(c.c_uint()), 2, U64(c.addressof(c.c_uint())))
