"""Memory answers of the simulated GPU: mistakes have the driver's own errors, arrays and pointers
describe themselves."""

from __future__ import annotations

import ctypes as c
from typing import Any

import pytest

from tests.kit.simulator.clients import Card, Client, Cuda, CudaError
from tests.kit.simulator.cuda import (
    ALREADY_REGISTERED,
    ARRAY,
    CUBEMAP,
    DEFERRED,
    DEVICE,
    FLOAT,
    HOST,
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    KIB,
    LAYERED,
    MIB,
    NOT_FOUND,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    U64,
    UINT8,
    Array2D,
    Array3D,
    Copy2D,
    Needs,
    Size,
    Ticket,
    array3d,
    pattern,
)


def test_mistakes_are_answered_with_the_drivers_own_errors(gpu: Card) -> None:
    wrong = gpu.client().call(mistakes)
    assert wrong == {}


def mistakes(cuda: Cuda) -> dict[str, tuple[int, int]]:
    """Calls that returned another error than they should: name -> (got, wanted)."""
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
