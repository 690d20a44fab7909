"""Copies and fills of the simulated GPU: every door moves the right bytes, and takes the time its way allows.

The functions that take a `cuda` run in a client process.
"""

from __future__ import annotations

import ctypes as c
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.simulator.clients import Card, Cuda
from tests.kit.simulator.cuda import (
    ARRAY,
    CAPTURE_IMPLICIT,
    CAPTURE_UNSUPPORTED,
    DEVICE,
    HOST,
    INVALID_VALUE,
    KIB,
    MIB,
    U64,
    UNIFIED,
    Copy2D,
    Copy3D,
    Location,
    Size,
    array3d,
    get,
    pattern,
    put,
)


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


HELD_S = 0.4
"""The host's own memcpy is over in it, where others leave it a processor."""


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
        for _ in range(10):
            began_s = time.monotonic()
            cuda.launch(hold, stream, int(HELD_S * 1e9))
            cuda.cuEventRecord(before, stream)
            door()
            cuda.cuEventRecord(after, stream)
            in_time = time.monotonic() < began_s + HELD_S  # else the host is measured, too
            cuda.cuStreamSynchronize(stream)
            if in_time:
                took[name] = cuda.elapsed_ms(before, after)
                break
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
