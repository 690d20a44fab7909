"""The driver's structures and numbers, and what programs of tests do with its memory."""

from __future__ import annotations

import ctypes as c
import random

from tests.kit.simulator.clients import Cuda

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


def observe(cuda: Cuda) -> int:
    cuda.context()
    return used(cuda)
