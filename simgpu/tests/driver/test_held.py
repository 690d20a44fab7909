"""Streams of the simulated driver that wait for values in memory, and write some: who waits, and for whom."""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.simulator.clients import Card, Cuda, card
from tests.kit.simulator.cuda import (
    INVALID_HANDLE,
    INVALID_VALUE,
    U64,
    Size,
    Ticket,
    get,
    pattern,
    put,
)

NOT_READY = 600
GEQ, EQ, AND, NOR = 0, 1, 2, 3
LAZY_PEER = 1
WAIT_32, WRITE_32, FLUSH, WAIT_64, WRITE_64, BARRIER = 1, 2, 3, 4, 5, 6
MANAGED_GLOBAL = 1


class Op(c.Structure):
    """CUstreamBatchMemOpParams, of a wait or a write."""

    _fields_ = [
        ("operation", c.c_int),
        ("address", U64),
        ("value", U64),
        ("flags", c.c_uint),
        ("alias", U64),
        ("rest", U64),
    ]


class NodeParams(c.Structure):
    _fields_ = [
        ("context", c.c_void_p),
        ("count", c.c_uint),
        ("ops", c.POINTER(Op)),
        ("flags", c.c_uint),
    ]


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


class Flags:
    """Words that the device and the host both see."""

    def __init__(self, cuda: Cuda) -> None:
        at = c.c_void_p()
        cuda.cuMemHostAlloc(c.byref(at), Size(4096), 2)
        assert at.value
        self.at = at.value
        c.memset(self.at, 0, 4096)
        self.words = (c.c_uint32 * 1024).from_address(at.value)

    def __getitem__(self, index: int) -> int:
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value

    def address(self, index: int) -> U64:
        return U64(self.at + 4 * index)


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def wait(cuda: Cuda, stream: Any, flags: Flags, index: int, value: int, how: int = GEQ) -> None:
    cuda.cuStreamWaitValue32_v2(stream, flags.address(index), c.c_uint32(value), how)


def held(cuda: Cuda) -> dict[str, Any]:
    """Work queued behind a value that is not there runs when the host writes the value, in
    order."""
    cuda.context()
    flags, kernel = Flags(cuda), cuda.kernel()
    stream, other = cuda.stream(), cuda.stream()
    before, after = cuda.event(), cuda.event()
    device, back = cuda.alloc(64), c.create_string_buffer(b"." * 64, 64)
    put(cuda, device, b"a" * 64)
    called: list[str] = []
    host = c.CFUNCTYPE(None, c.c_void_p)(
        lambda _: called.append(bytes(flags.words)[512:516].decode())
    )
    source = c.create_string_buffer(b"b" * 64, 64)
    wait(cuda, stream, flags, 0, 1)
    cuda.cuEventRecord(before, stream)
    cuda.launch(kernel, stream, 5_000_000)
    cuda.cuMemcpyHtoDAsync_v2(U64(device), source, Size(64), stream)  # pageable: read now
    cuda.cuEventRecord(after, stream)
    c.memmove(source, b"c" * 64, 64)
    cuda.cuMemsetD8Async(U64(flags.at + 512), c.c_ubyte(ord("x")), Size(4), stream)
    cuda.cuLaunchHostFunc(stream, host, None)
    cuda.cuStreamWriteValue32(stream, flags.address(1), c.c_uint32(7), 0)
    told: dict[str, Any] = {
        "busy": cuda.try_("cuStreamQuery", stream),
        "event": cuda.try_("cuEventQuery", after),
        "elapsed": cuda.try_("cuEventElapsedTime", c.byref(c.c_float()), before, after),
        "called before": list(called),
        "written before": flags[1],
    }
    cuda.launch(kernel, other, 1000)  # a stream of its own is not held
    cuda.cuStreamSynchronize(other)
    cuda.cuMemcpyDtoHAsync_v2(back, U64(device), Size(64), other)
    told["others see"] = back.raw
    flags[0] = 1
    cuda.cuStreamSynchronize(stream)
    told |= {
        "idle": cuda.try_("cuStreamQuery", stream),
        "called": called,
        "written": flags[1],
        "device": get(cuda, device, 64),
        "at least ms": cuda.elapsed_ms(before, after) >= 5.0,
    }
    return told


def test_what_comes_after_a_wait_happens_when_the_value_is_there(gpu: Card) -> None:
    assert gpu.client().call(held) == {
        "busy": NOT_READY,
        "event": NOT_READY,
        "elapsed": NOT_READY,
        "called before": [],
        "written before": 0,
        "others see": b"a" * 64,
        "idle": 0,
        "called": ["xxxx"],
        "written": 7,
        "device": b"b" * 64,
        "at least ms": True,
    }


def conditions(cuda: Cuda) -> dict[str, bool]:
    """Every condition, at the value that just does not do and at one that does."""
    cuda.context()
    flags = Flags(cuda)
    tries = {
        "at least": (GEQ, 5, 4, 6),
        "at least, in a circle": (GEQ, 0xFFFFFFFE, 0xFFFFFFF0, 3),
        "equal": (EQ, 5, 6, 5),
        "and": (AND, 0b110, 0b1001, 0b0100),
        "nor": (NOR, 0xFFFF0000, 0x0000FFFF, 0x0000FFFE),
        "flushed": (EQ | 0x40000000, 5, 6, 5),
    }
    told = {}
    for bits in (32, 64):
        for name, (how, value, not_yet, enough) in tries.items():
            stream = cuda.stream()
            sign = 32 if bits == 64 else 0
            words = (c.c_uint64 if bits == 64 else c.c_uint32).from_address(flags.at)
            kind = c.c_uint64 if bits == 64 else c.c_uint32

            def wide(word: int, sign: int = sign) -> int:
                return word << sign | (0xFFFFFFFF if sign and word & 0x80000000 else 0)

            full = "nor" in name
            words.value = wide(not_yet) | (0xFFFFFFFF if full and sign else 0)
            wanted = wide(value) | (0xFFFFFFFF if full and sign else 0)
            symbol = f"cuStreamWaitValue{bits}_v2"
            getattr(cuda, symbol)(stream, U64(flags.at), kind(wanted), how)
            waited = cuda.try_("cuStreamQuery", stream) == NOT_READY
            time.sleep(0.002)
            waited = waited and cuda.try_("cuStreamQuery", stream) == NOT_READY
            words.value = wide(enough)
            cuda.cuStreamSynchronize(stream)
            told[f"{name}, {bits}"] = waited
    return told


def test_each_condition_waits_and_ends(gpu: Card) -> None:
    told = gpu.client().call(conditions)
    assert len(told) == 12
    assert [name for name, waited in told.items() if not waited] == []


def order(cuda: Cuda) -> dict[str, Any]:
    """A write comes after the work before it; a wait ended by another stream's write."""
    cuda.context()
    flags, kernel = Flags(cuda), cuda.kernel()
    first, second, third = cuda.stream(), cuda.stream(), cuda.stream()
    seen = []
    wait(cuda, second, flags, 0, 1)
    cuda.launch(kernel, second, 1000)
    cuda.cuStreamWriteValue64(second, flags.address(2), U64(1 << 40), 0)
    cuda.launch(kernel, first, 300_000_000)
    cuda.cuStreamWriteValue32_v2(first, flags.address(0), c.c_uint32(1), 0)
    seen.append((flags[0], cuda.try_("cuStreamQuery", first), cuda.try_("cuStreamQuery", second)))
    event = cuda.event()
    cuda.cuEventRecord(event, second)
    cuda.cuStreamWaitEvent(third, event, 0)  # held because the other is
    cuda.cuStreamWriteValue32(third, flags.address(4), c.c_uint32(9), 0)
    cuda.cuStreamDestroy_v2(second)  # its work goes on
    cuda.cuEventSynchronize(event)
    seen.append((flags[0], flags[3], cuda.try_("cuEventQuery", event)))
    cuda.cuStreamSynchronize(third)
    return {"seen": seen, "third": flags[4]}


def test_a_write_is_in_the_order_of_its_stream_and_ends_the_wait_of_another(gpu: Card) -> None:
    told = gpu.client().call(order)
    assert told == {"seen": [(0, NOT_READY, NOT_READY), (1, 1 << 8, 0)], "third": 9}


def legacy(cuda: Cuda) -> dict[str, Any]:
    """The legacy stream and a blocking one wait for each other; a non-blocking one for neither."""
    cuda.context()
    flags = Flags(cuda)
    blocking, free = c.c_void_p(), cuda.stream()
    cuda.cuStreamCreate(c.byref(blocking), 0)
    wait(cuda, blocking, flags, 0, 1)
    cuda.cuStreamWriteValue32(None, flags.address(1), c.c_uint32(1), 0)
    cuda.cuStreamWriteValue32(free, flags.address(2), c.c_uint32(1), 0)
    early = (flags[1], flags[2], cuda.try_("cuStreamQuery", None))
    late = threading.Timer(0.05, lambda: flags.__setitem__(0, 1))
    late.start()
    device = cuda.alloc(16)
    # On the legacy stream, and waits: for the blocking one, too.
    put(cuda, device, b"0123456789abcdef")
    after = (flags[0], flags[1])
    wait(cuda, None, flags, 3, 1)
    cuda.cuStreamWriteValue32(blocking, flags.address(4), c.c_uint32(1), 0)
    held_back = flags[4]
    flags[3] = 1
    cuda.cuCtxSynchronize()
    return {"early": early, "after": after, "held back": held_back, "at last": flags[4]}


def test_the_legacy_stream_and_blocking_ones_hold_each_other(gpu: Card) -> None:
    assert gpu.client().call(legacy) == {
        "early": (0, 1, NOT_READY),
        "after": (1, 1),
        "held back": 0,
        "at last": 1,
    }


def between_begin(cuda: Cuda) -> tuple[bytes, int]:
    cuda.context()
    at, ticket = cuda.alloc(4096), Ticket()
    put(cuda, at, bytes(4096))
    cuda.cuIpcGetMemHandle(c.byref(ticket), U64(at))
    return bytes(ticket), at


_here: dict[str, Any] = {}


def between_wait(cuda: Cuda, ticket: bytes) -> int:
    """Queue a wait for a value that another process writes; returns the state of the stream."""
    cuda.context()
    at, stream = U64(), cuda.stream()
    cuda.cuIpcOpenMemHandle_v2(c.byref(at), Ticket.from_buffer_copy(ticket), LAZY_PEER)
    cuda.cuStreamWaitValue32(stream, at, c.c_uint32(3), EQ)
    cuda.cuStreamWriteValue32(stream, U64(at.value + 8), c.c_uint32(os.getpid()), 0)
    _here["stream"] = stream
    return cuda.try_("cuStreamQuery", stream)


def between_end(cuda: Cuda) -> int:
    cuda.cuStreamSynchronize(_here.pop("stream"))
    return os.getpid()


def between_write(cuda: Cuda, at: int) -> int:
    cuda.cuStreamWriteValue32(None, U64(at), c.c_uint32(3), 0)
    assert until(lambda: any(get(cuda, at + 8, 4)))
    return int.from_bytes(get(cuda, at + 8, 4), "little")


def test_two_processes_signal_each_other_through_shared_memory(gpu: Card) -> None:
    one, two = gpu.client(), gpu.client()
    ticket, at = one.call(between_begin)
    assert two.call(between_wait, ticket) == NOT_READY
    assert one.call(between_write, at) == two.call(between_end)


def in_graphs(cuda: Cuda) -> dict[str, Any]:
    """A captured wait holds the launch, not its making; an executable graph may go while its launch is held."""
    cuda.context()
    flags, stream = Flags(cuda), cuda.stream()
    graph, executable = c.c_void_p(), c.c_void_p()
    device = cuda.alloc(64)
    put(cuda, device, b"a" * 64)
    cuda.cuStreamBeginCapture_v2(stream, 0)
    wait(cuda, stream, flags, 0, 1)
    cuda.cuMemsetD8Async(U64(device), c.c_ubyte(ord("b")), Size(64), stream)
    cuda.cuStreamWriteValue32(stream, flags.address(1), c.c_uint32(1), 0)
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    made = flags[1]
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuGraphExecDestroy(executable)
    cuda.cuGraphDestroy(graph)
    launched = (cuda.try_("cuStreamQuery", stream), get(cuda, device, 1), flags[1])
    flags[0] = 1
    cuda.cuStreamSynchronize(stream)
    ended = (get(cuda, device, 1), flags[1])

    node, told, stream = c.c_void_p(), NodeParams(), cuda.stream()
    ops = (Op * 2)(
        Op(WRITE_32, flags.address(2).value, 5), Op(WAIT_32, flags.address(2).value, 5, EQ)
    )
    cuda.cuGraphCreate(c.byref(graph), 0)
    cuda.cuGraphAddBatchMemOpNode(
        c.byref(node), graph, None, Size(0), c.byref(NodeParams(None, 2, ops, 0))
    )
    cuda.cuGraphBatchMemOpNodeGetParams(node, c.byref(told))
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuStreamSynchronize(stream)
    return {
        "made": made,
        "launched": launched,
        "ended": ended,
        "node": (told.count, told.ops[1].operation, flags[2]),
    }


def test_in_a_graph_they_belong_to_its_launch(gpu: Card) -> None:
    assert gpu.client().call(in_graphs) == {
        "made": 0,
        "launched": (NOT_READY, b"a", 0),
        "ended": (b"b", 1),
        "node": (2, WAIT_32, 5),
    }


def ends(cuda: Cuda) -> list[int]:
    """Held things may be destroyed: an event before it is recorded, a stream, a whole context."""
    context = cuda.context()
    flags, stream, other = Flags(cuda), cuda.stream(), cuda.stream()
    event, again = cuda.event(), cuda.event()
    wait(cuda, stream, flags, 0, 1)
    cuda.cuEventRecord(event, stream)
    cuda.cuStreamWaitEvent(other, event, 0)
    cuda.cuEventDestroy_v2(event)
    cuda.cuEventRecord(again, stream)
    cuda.cuEventRecord(again, cuda.stream())  # anew, where nothing is held
    codes = [cuda.try_("cuEventQuery", again), cuda.try_("cuStreamQuery", other)]
    flags[0] = 1
    cuda.cuStreamSynchronize(other)
    cuda.cuStreamSynchronize(stream)  # which still records `again` when the other goes on
    codes.append(cuda.try_("cuStreamQuery", stream))
    wait(cuda, stream, flags, 1, 1)
    cuda.launch(cuda.kernel(), stream, 1000)
    cuda.cuStreamDestroy_v2(stream)
    cuda.cuCtxDestroy_v2(context)
    cuda.context()
    cuda.cuCtxSynchronize()
    return codes


def test_what_is_held_may_be_destroyed(gpu: Card) -> None:
    assert gpu.client().call(ends) == [0, NOT_READY, 0]


def mistakes(cuda: Cuda) -> dict[str, int]:
    cuda.context()
    flags, stream, managed = Flags(cuda), cuda.stream(), U64()
    cuda.cuMemAllocManaged(c.byref(managed), Size(64), MANAGED_GLOBAL)
    pageable = (c.c_uint32 * 4)()
    value, ops = c.c_uint32(1), (Op * 256)(*[Op(BARRIER, 0, 0, 0)] * 256)
    crooked = U64(flags.at + 2)
    batch = "cuStreamBatchMemOp_v2"
    unknown, remote = (Op * 1)(Op(99)), (Op * 2)(Op(FLUSH), Op(BARRIER))
    return {
        "pageable": cuda.try_("cuStreamWaitValue32", stream, U64(c.addressof(pageable)), value, 0),
        "managed": cuda.try_("cuStreamWaitValue32", stream, managed, value, 0),
        "crooked": cuda.try_("cuStreamWriteValue32", stream, crooked, value, 0),
        "crooked, wide": cuda.try_("cuStreamWriteValue64", stream, flags.address(1), U64(1), 0),
        "flags of a wait": cuda.try_("cuStreamWaitValue32", stream, flags.address(0), value, 4),
        "flags of a write": cuda.try_("cuStreamWriteValue32", stream, flags.address(0), value, 2),
        "too many": cuda.try_(batch, stream, 256, ops, 0),
        "flags of a batch": cuda.try_(batch, stream, 1, ops, 1),
        "no list": cuda.try_(batch, stream, 1, None, 0),
        "no such operation": cuda.try_(batch, stream, 1, unknown, 0),
        "a foreign handle": cuda.try_(batch, cuda.event(), 1, ops, 0)
        - INVALID_HANDLE
        + INVALID_VALUE,
        "fine": cuda.try_(batch, stream, 255, ops, 0) + INVALID_VALUE,
        "fine, too": cuda.try_(batch, stream, 2, remote, 0) + INVALID_VALUE,
    }


def test_mistakes_are_refused(gpu: Card) -> None:
    told = gpu.client().call(mistakes)
    assert {what: code for what, code in told.items() if code != INVALID_VALUE} == {}


def freed(cuda: Cuda) -> list[int]:
    """Stream-ordered memory that a held stream frees is in use until it gets there."""
    cuda.context()
    flags, stream, at, pool = Flags(cuda), cuda.stream(), U64(), c.c_void_p()
    in_use = U64()
    cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
    cuda.cuMemAllocAsync(c.byref(at), Size(4096), stream)
    wait(cuda, stream, flags, 0, 1)
    cuda.cuMemFreeAsync(at, stream)
    cuda.cuMemPoolGetAttribute(pool, 7, c.byref(in_use))
    seen = [in_use.value]
    flags[0] = 1
    cuda.cuStreamSynchronize(stream)
    cuda.cuMemPoolGetAttribute(pool, 7, c.byref(in_use))
    return [*seen, in_use.value, cuda.try_("cuMemFreeAsync", at, stream)]


def test_memory_freed_on_a_held_stream_is_in_use_until_it_gets_there(gpu: Card) -> None:
    assert gpu.client().call(freed) == [4096, 0, INVALID_VALUE]


def many(cuda: Cuda) -> tuple[int, bytes]:
    """A chain of streams, each waiting for the one before, built backwards; and copies through it."""
    cuda.context()
    flags, count = Flags(cuda), 32
    cells = [cuda.alloc(256) for _ in range(count + 1)]
    data = pattern(256)
    put(cuda, cells[0], data)
    streams = [cuda.stream() for _ in range(count)]
    for index in reversed(range(count)):
        wait(cuda, streams[index], flags, index, 1)
        cuda.cuMemcpyDtoDAsync_v2(
            U64(cells[index + 1]), U64(cells[index]), Size(256), streams[index]
        )
        cuda.cuStreamWriteValue32(streams[index], flags.address(index + 1), c.c_uint32(1), 0)
    flags[0] = 1
    cuda.cuCtxSynchronize()
    return flags[count], get(cuda, cells[count], 256)


def test_a_chain_of_held_streams_runs_in_its_order(gpu: Card) -> None:
    assert gpu.client().call(many) == (1, pattern(256))
