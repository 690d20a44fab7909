"""Calls of other people's programs into the simulated driver besides memory and launches."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.tests.driver import images
from tests.kit.simulator.clients import Card, Cuda, card
from tests.kit.simulator.cuda import UINT8, UINT32, array3d

INVALID_VALUE, NOT_SUPPORTED, INVALID_PTX = 1, 801, 218
PRIORITY, SYNC_POLICY, CLUSTER = 8, 3, 4
ORDINAL, MEMORY_TYPE, POINTER, RANGE_SIZE, CONTEXT = 9, 2, 3, 12, 1


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def foreign(cuda: Cuda) -> tuple[dict[str, int], dict[str, int], int]:
    """All attributes at once, of memory that the driver never saw and of its own; and one alone."""
    context = cuda.context()
    own = cuda.alloc(1 << 20)
    host = c.create_string_buffer(64)

    def ask(address: int) -> dict[str, int]:
        values = {
            "ordinal": (ORDINAL, c.c_int(77)),
            "type": (MEMORY_TYPE, c.c_uint(77)),
            "pointer": (POINTER, c.c_uint64(77)),
            "size": (RANGE_SIZE, c.c_size_t(77)),
            "context": (CONTEXT, c.c_void_p(77)),
        }
        which = (c.c_int * len(values))(*(attribute for attribute, _ in values.values()))
        into = (c.c_void_p * len(values))(*(c.addressof(value) for _, value in values.values()))
        cuda.cuPointerGetAttributes(len(values), which, into, c.c_uint64(address))
        return {name: value.value or 0 for name, (_, value) in values.items()}

    mine = ask(own)
    mine["context"] = int(mine["context"] == context.value)
    mine["pointer"] -= own
    alone = cuda.try_(
        "cuPointerGetAttribute", c.byref(c.c_uint()), MEMORY_TYPE, c.c_uint64(c.addressof(host))
    )
    return ask(c.addressof(host)), mine, alone


def test_a_pointer_of_somebody_else_has_no_attributes_and_that_is_no_error(gpu: Card) -> None:
    theirs, ours, alone = gpu.client().call(foreign)
    assert theirs == {"ordinal": -2, "type": 0, "pointer": 0, "size": 0, "context": 0}
    assert ours == {"ordinal": 0, "type": 2, "pointer": 0, "size": 1 << 20, "context": 1}
    assert alone == INVALID_VALUE


def stream_attributes(cuda: Cuda) -> list[int]:
    cuda.context()
    first, second = cuda.stream(), cuda.stream()
    value = (c.c_int * 16)(4)  # block while waiting
    cuda.cuStreamSetAttribute(first, SYNC_POLICY, value)
    cuda.cuStreamCopyAttributes(second, first)
    answer = []
    for stream in (None, first, second):
        cuda.cuStreamGetAttribute(stream, SYNC_POLICY, value)
        answer.append(value[0])
    answer.append(cuda.try_("cuStreamGetAttribute", first, CLUSTER, value))
    cuda.cuStreamCreateWithPriority(c.byref(second), 1, -3)
    cuda.cuStreamGetAttribute(second, PRIORITY, value)
    return [*answer, value[0]]


def test_streams_keep_their_attributes(gpu: Card) -> None:
    assert gpu.client().call(stream_attributes) == [1, 4, 4, INVALID_VALUE, -3]


def user_objects(cuda: Cuda) -> list[int]:
    """How many destructors have run, step by step."""
    cuda.context()
    ended: list[int] = []
    destroy = c.CFUNCTYPE(None, c.c_void_p)(lambda argument: ended.append(argument or 0))
    thing, graph, executable = c.c_void_p(), c.c_void_p(), c.c_void_p()
    cuda.cuUserObjectCreate(c.byref(thing), c.c_void_p(7), destroy, 1, 1)
    cuda.cuGraphCreate(c.byref(graph), 0)
    cuda.cuGraphRetainUserObject(graph, thing, 1, 0)
    steps = [len(ended)]
    cuda.cuUserObjectRelease(thing, 1)
    steps.append(len(ended))
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, c.c_ulonglong(0))
    cuda.cuGraphDestroy(graph)
    steps.append(len(ended))
    cuda.cuGraphExecDestroy(executable)
    return [*steps, len(ended), *ended]


def test_a_user_object_ends_with_the_last_graph_that_holds_it(gpu: Card) -> None:
    assert gpu.client().call(user_objects) == [0, 0, 0, 1, 7]


def batch(cuda: Cuda) -> tuple[bytes, int]:
    cuda.context()
    stream = cuda.stream()
    host = c.create_string_buffer(b"0123456789abcdef", 16)
    device, back = cuda.alloc(16), c.create_string_buffer(16)
    attributes = (c.c_uint32 * 8)(1)  # read in the order of the stream
    first = (c.c_size_t * 1)(0)

    def copy(to: list[int], sources: list[int], sizes: list[int]) -> int:
        n = len(to)
        return cuda.try_(
            "cuMemcpyBatchAsync_v2",
            (c.c_uint64 * n)(*to),
            (c.c_uint64 * n)(*sources),
            (c.c_size_t * n)(*sizes),
            c.c_size_t(n),
            attributes,
            first,
            c.c_size_t(1),
            stream,
        )

    at = c.addressof(host)
    assert copy([device, device + 8], [at + 8, at], [8, 8]) == 0
    cuda.cuMemcpyDtoH_v2(back, c.c_uint64(device), c.c_size_t(16))
    legacy = cuda.try_(
        "cuMemcpyBatchAsync_v2",
        *((c.c_uint64 * 1)(device), (c.c_uint64 * 1)(at), (c.c_size_t * 1)(8), c.c_size_t(1)),
        *(attributes, first, c.c_size_t(1), None),
    )
    return back.raw, legacy


def test_a_batch_of_copies_is_done_in_order_and_on_a_stream_of_its_own(gpu: Card) -> None:
    assert gpu.client().call(batch) == (b"89abcdef01234567", INVALID_VALUE)


def tensor_map(cuda: Cuda, stride: int) -> tuple[int, int, int]:
    cuda.context()
    address = cuda.alloc(1 << 20)
    map_ = (c.c_uint64 * 16)()
    code = cuda.try_(
        "cuTensorMapEncodeTiled",
        *(map_, 7, 2, c.c_void_p(address)),
        *((c.c_uint64 * 2)(256, 128), (c.c_uint64 * 1)(stride)),
        *((c.c_uint32 * 2)(64, 64), (c.c_uint32 * 2)(1, 1), 0, 0, 0, 0),
    )
    replaced = cuda.try_("cuTensorMapReplaceAddress", map_, c.c_void_p(address + 512))
    return code, replaced, map_[0] - address


def test_tensor_maps_are_checked_and_their_address_replaced(gpu: Card, tmp_path: Path) -> None:
    assert gpu.client().call(tensor_map, 1024) == (0, 0, 512)
    assert gpu.client().call(tensor_map, 1020)[0] == INVALID_VALUE
    with card(tmp_path / "old", "a100-40gb") as older:
        assert older.client().call(tensor_map, 1024)[0] == NOT_SUPPORTED


def linked(cuda: Cuda, files: str) -> tuple[list[int], int, int]:
    cuda.context()
    state, image, size = c.c_void_p(), c.c_void_p(), c.c_size_t()
    cuda.cuLinkCreate_v2(0, None, None, c.byref(state))

    def add(kind: int, data: bytes) -> int:
        return cuda.try_(
            "cuLinkAddData_v2", state, kind, data, c.c_size_t(len(data)), b"x", 0, None, None
        )

    path = Path(files) / "third.ptx"
    path.write_bytes(images.ptx(name="from_file"))
    codes = [add(1, images.ptx()), add(0, images.cubin()), add(1, images.cubin())]
    codes.append(cuda.try_("cuLinkAddFile_v2", state, 1, str(path).encode(), 0, None, None))
    cuda.cuLinkComplete(state, c.byref(image), c.byref(size))
    module, count = c.c_void_p(), c.c_uint()
    cuda.cuModuleLoadData(c.byref(module), image)
    cuda.cuModuleGetFunctionCount(c.byref(count), module)
    for name in (b"first", b"from_elf", b"from_file"):
        cuda.cuModuleGetFunction(c.byref(c.c_void_p()), module, name)
    cuda.cuLinkDestroy(state)
    return codes, count.value, size.value


def test_what_the_linker_made_has_the_kernels_of_all_that_was_added(
    gpu: Card, tmp_path: Path
) -> None:
    codes, count, size = gpu.client().call(linked, str(tmp_path))
    assert codes == [0, 0, INVALID_PTX, 0]
    assert count == 4, "`second` is in both texts"
    assert size > len(images.ptx()) + len(images.cubin())


class Resource(c.Structure):
    _fields_ = [
        *(("type", c.c_uint), ("padding", c.c_ubyte * 92), ("sms", c.c_uint)),
        *(("least", c.c_uint), ("step", c.c_uint), ("rest", c.c_ubyte * 36)),
    ]


def green(cuda: Cuda) -> dict[str, Any]:
    cuda.cuInit(0)
    whole, parts, rest, told = Resource(), (Resource * 8)(), Resource(), Resource()
    groups = c.c_uint(3)
    cuda.cuDeviceGetDevResource(0, c.byref(whole), 1)
    cuda.cuDevSmResourceSplitByCount(parts, c.byref(groups), c.byref(whole), c.byref(rest), 0, 30)
    desc, made, context, stream = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    cuda.cuDevResourceGenerateDesc(c.byref(desc), parts, 1)
    cuda.cuGreenCtxCreate(c.byref(made), desc, 0, 1)
    cuda.cuGreenCtxGetDevResource(made, c.byref(told), 1)
    cuda.cuCtxFromGreenCtx(c.byref(context), made)
    cuda.cuCtxSetCurrent(context)
    cuda.cuGreenCtxStreamCreate(c.byref(stream), made, 1, 0)
    cuda.launch(cuda.kernel(), stream, 1_000_000)
    cuda.cuStreamSynchronize(stream)
    of_stream = c.c_void_p()
    cuda.cuStreamGetGreenCtx(stream, c.byref(of_stream))
    flags, active = c.c_uint(), c.c_int()
    cuda.cuGreenCtxDestroy(made)
    cuda.cuDevicePrimaryCtxGetState(0, c.byref(flags), c.byref(active))
    return {
        "whole": (whole.sms, whole.least),
        "groups": groups.value,
        "each": [part.sms for part in parts[: groups.value]],
        "rest": rest.sms,
        "told": told.sms,
        "its stream": of_stream.value == made.value,
        "active after": active.value,
    }


def test_green_contexts_split_the_sms_and_work_is_done_in_them(gpu: Card) -> None:
    assert gpu.client().call(green) == {
        "whole": (132, 8),
        "groups": 3,
        "each": [32, 32, 32],
        "rest": 132 - 96,
        "told": 32,
        "its stream": True,
        "active after": 0,
    }


def newer_forms(cuda: Cuda) -> tuple[int, int, list[int]]:
    """CUDA 13's forms, which a program that asks for version 13000 is given."""
    context = cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    cuda.launch(kernel, stream, 1_000_000)
    cuda.cuCtxSynchronize_v2(context)
    cuda.cuStreamBeginCapture_v2(stream, 0)
    for _ in range(3):
        cuda.launch(kernel, stream, 1000)
    graph, count = c.c_void_p(), c.c_size_t(8)
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    begin, end, data = (c.c_void_p * 8)(), (c.c_void_p * 8)(), (c.c_ubyte * 64)(*([9] * 64))
    cuda.cuGraphGetEdges_v2(graph, begin, end, data, c.byref(count))
    told = c.c_void_p()
    cuda.cuStreamGetCtx_v2(stream, c.byref(told), None)
    return count.value, int(told.value == context.value), list(data[:16])


def test_the_newer_forms_of_calls_with_one_argument_more(gpu: Card) -> None:
    assert gpu.client().call(newer_forms) == (2, 1, [0] * 16)


def managed_ranges(cuda: Cuda) -> tuple[int, int, int]:
    cuda.context()
    address, value = c.c_uint64(), c.c_int(7)
    cuda.cuMemAllocManaged(c.byref(address), c.c_size_t(1 << 20), 1)
    size = c.c_size_t(1 << 20)
    cuda.cuMemRangeGetAttribute(c.byref(value), c.c_size_t(4), 2, address, size)
    where = value.value
    cuda.cuMemRangeGetAttribute(c.byref(value), c.c_size_t(4), 1, address, size)
    plain = cuda.alloc(1 << 20)
    code = cuda.try_(
        "cuMemRangeGetAttribute", c.byref(value), c.c_size_t(4), 1, c.c_uint64(plain), size
    )
    return where, value.value, code


def test_a_managed_range_that_nobody_advised(gpu: Card) -> None:
    assert gpu.client().call(managed_ranges) == (-2, 0, INVALID_VALUE)


def stateful(cuda: Cuda) -> tuple[list[int], float]:
    """The calls from before CUDA 4: what they refuse, and how long a launch with their parameters takes, in ms."""
    cuda.context()
    kernel, before, after = cuda.kernel(), cuda.event(), cuda.event()
    duration = c.c_uint64(5_000_000)
    refused = [
        cuda.try_("cuFuncSetBlockShape", kernel, 0, 1, 1),
        cuda.try_("cuParamSetSize", kernel, 4097),
        cuda.try_("cuParamSetv", kernel, 4090, c.byref(duration), 8),
        cuda.try_("cuParamSetv", kernel, -1, c.byref(duration), 8),
        cuda.try_("cuLaunchGrid", kernel, 0, 1),
        cuda.try_("cuFuncSetSharedSize", None, 1),
    ]
    cuda.cuFuncSetBlockShape(kernel, 32, 2, 1)
    cuda.cuFuncSetSharedSize(kernel, 1024)
    cuda.cuParamSetv(kernel, 0, c.byref(duration), 8)
    cuda.cuParamSetSize(kernel, 8)
    cuda.cuEventRecord(before, None)
    cuda.cuLaunchGrid(kernel, 4, 4)
    cuda.cuEventRecord(after, None)
    cuda.cuEventSynchronize(after)
    took = cuda.elapsed_ms(before, after)
    cuda.cuFuncSetBlockShape(kernel, 2048, 1, 1)
    refused.append(cuda.try_("cuLaunch", kernel))
    return refused, took


def test_launches_as_before_cuda_4(gpu: Card) -> None:
    refused, took = gpu.client().call(stateful)
    assert refused == [1, 1, 1, 1, 1, 400, 1]
    assert 4.9 < took < 50, "the parameter was there"


class Operand(c.Structure):
    """CUmemcpy3DOperand: a pointer with its row and layer, or an array with an offset."""

    _fields_ = [("type", c.c_int), ("at", c.c_uint64 * 4)]


class Boxed(c.Structure):
    """CUDA_MEMCPY3D_BATCH_OP."""

    _fields_ = [
        ("src", Operand),
        ("dst", Operand),
        ("extent", c.c_size_t * 3),
        ("order", c.c_int),
        ("flags", c.c_uint),
    ]


def pointed(address: int, row: int = 0, height: int = 0) -> Operand:
    return Operand(1, (c.c_uint64 * 4)(address, row, height, 0))


def in_array(array: c.c_void_p, *offset: int) -> Operand:
    return Operand(2, (c.c_uint64 * 4)(array.value or 0, *offset))


def boxes_in_batches(cuda: Cuda) -> dict[str, Any]:
    """Boxes of 3 x 2 x 2 elements out of larger ones, between host, device and arrays, in one batch."""
    cuda.context()
    stream, count = cuda.stream(), 8 * 4 * 4 * 4
    data = bytes(range(256)) * 2
    source, back = c.create_string_buffer(data, count), c.create_string_buffer(count)
    here, there = c.addressof(source), c.addressof(back)
    device = cuda.alloc(count)
    words = array3d(cuda, 8, 4, 4, UINT32)  # 4 bytes an element
    doubled = array3d(cuda, 8, 4, 4, UINT8)

    def run(*boxes: Boxed, symbol: str = "cuMemcpy3DBatchAsync_v2", on: Any = stream) -> int:
        list_ = (Boxed * len(boxes))(*boxes)
        return cuda.try_(symbol, c.c_size_t(len(boxes)), list_, c.c_ulonglong(0), on)

    def box(src: Operand, dst: Operand, width: int = 3, order: int = 1) -> Boxed:
        return Boxed(src, dst, (c.c_size_t * 3)(width, 2, 2), order, 0)

    cuda.cuMemsetD8_v2(c.c_uint64(device), c.c_ubyte(0), c.c_size_t(count))
    first = run(
        box(pointed(here + 1, 8, 4), pointed(device, 3, 2)),  # gathered
        box(pointed(here, 8, 4), in_array(words, 1, 0, 2)),  # 3 words are 12 bytes of an 8-word row
    )
    second = run(
        box(pointed(device), pointed(there)),
        box(in_array(words, 1, 0, 2), pointed(there + 64)),
    )
    cuda.cuStreamSynchronize(stream)
    failed = c.c_size_t()
    pair = (Boxed * 2)(
        box(pointed(device), pointed(there)), box(pointed(device), pointed(there), order=0)
    )
    third = cuda.try_(
        "cuMemcpy3DBatchAsync", c.c_size_t(2), pair, c.byref(failed), c.c_ulonglong(0), stream
    )
    one = c.create_string_buffer(12)
    single = box(pointed(here + 2, 8, 4), pointed(c.addressof(one)))
    cuda.cuMemcpy3DWithAttributesAsync(c.byref(single), c.c_ulonglong(0), None)
    attributes, plain = (c.c_uint32 * 8)(2), c.create_string_buffer(8)
    cuda.cuMemcpyWithAttributesAsync(
        c.c_uint64(c.addressof(plain)), c.c_uint64(here + 8), c.c_size_t(8), attributes, stream
    )
    cuda.cuCtxSynchronize()
    return {
        "ends": (first, second),
        "gathered": back.raw[:12],
        "through an array": back.raw[64:112],
        "second failed": (third, failed.value),
        "one": one.raw,
        "plain": plain.raw[:8],
        "wrong": {
            run(box(pointed(device), pointed(there)), on=None),
            run(box(pointed(device, 2), pointed(there))),  # rows shorter than the box
            run(box(in_array(words, 0, 0, 0), in_array(doubled, 0, 0, 0))),  # elements of two sizes
            run(box(pointed(device), pointed(there), width=0)),
            run(box(in_array(words, 6, 0, 0), pointed(there))),  # beyond the array's row
            run(),
        },
    }


def test_boxes_are_copied_in_batches(gpu: Card) -> None:
    told = gpu.client().call(boxes_in_batches)

    def gather(start: int, row: int, width: int) -> bytes:
        rows = [start + z * 4 * row + y * row for z in range(2) for y in range(2)]
        return b"".join(bytes(range(at, at + width)) for at in rows)

    assert told == {
        "ends": (0, 0),
        "gathered": gather(1, 8, 3),
        "through an array": told["through an array"],
        "second failed": (INVALID_VALUE, 1),
        "one": gather(2, 8, 3),
        "plain": bytes(range(8, 16)),
        "wrong": {INVALID_VALUE},
    }
    # two rows of 32 bytes of two layers of four such rows
    assert told["through an array"] == b"".join(
        (bytes(range(256)) * 2)[at : at + 12] for at in (0, 32, 128, 160)
    )
