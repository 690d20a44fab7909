"""Tenants of one grant on a simulated GPU, random programs of theirs, and an observer outside of the grant who knows the truth."""

from __future__ import annotations

import ctypes as c
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interpose import regions
from tests.interpose.regions import GIB, Region
from tests.kit.simulator.clients import Client, Cuda, CudaError
from tests.kit.simulator.cuda import (
    FLOAT,
    LAZY_PEER,
    MIB,
    PAGE,
    U64,
    Array2D,
    Array3D,
    Location,
    PoolProps,
    Size,
    Ticket,
    create,
    map_at,
    reserve,
    used,
)

LIMIT = 3 * GIB
PROCESSES = 3
CLASSES = 13
"""Size classes from 512 bytes to 1 MiB, and the pages small arrays and managed blocks share."""
OUT_OF_MEMORY = 2

# --- inside a process of the grant --------------------------------------------------------------------------------


@dataclass
class Tenant:
    contexts: list[c.c_void_p] = field(default_factory=list)
    things: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    """(kind, index of its context, handles)"""
    pools: dict[int, int] = field(default_factory=dict)


_tenant = Tenant()


def begin(cuda: Cuda) -> None:
    cuda.cuInit(0)
    primary = c.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(c.byref(primary), 0)
    cuda.cuCtxSetCurrent(primary)
    _tenant.contexts.append(primary)


def size_of(rng: random.Random, ragged: bool) -> int:
    if not ragged:
        return rng.choice([1, 1, 2, 3, 8, 20]) * PAGE
    return rng.choice(
        [1, 511, 513, 4096, 65_537, MIB // 2 + 1, MIB, MIB + 1, 3 * MIB, rng.randrange(1, 40 * MIB)]
    )


def make(cuda: Cuda, rng: random.Random, kind: str, ragged: bool) -> tuple[int, ...]:
    size = size_of(rng, ragged)
    at, handle, pitch = U64(), c.c_void_p(), Size()
    rows = max(1, size // 2048)
    if kind == "plain":
        cuda.cuMemAlloc_v2(c.byref(at), Size(size))
    elif kind == "managed":
        cuda.cuMemAllocManaged(c.byref(at), Size(size), 1)
    elif kind == "pitch":
        width = 2048 if not ragged else rng.randrange(1, 2049)
        cuda.cuMemAllocPitch_v2(c.byref(at), c.byref(pitch), Size(width), Size(rows), 4)
    elif kind == "array":
        desc = Array2D(512 if not ragged else rng.randrange(1, 513), rows, FLOAT, 1)
        cuda.cuArrayCreate_v2(c.byref(handle), c.byref(desc))
        return (handle.value or 0,)
    elif kind == "box":
        box = Array3D(512, 64, max(1, rows // 64), FLOAT, 1, 0)
        cuda.cuArray3DCreate_v2(c.byref(handle), c.byref(box))
        return (handle.value or 0,)
    elif kind == "mipmap":
        box = Array3D(1024, 1024, 0, FLOAT, 1, 0)
        cuda.cuMipmappedArrayCreate(c.byref(handle), c.byref(box), 1 if not ragged else 11)
        return (handle.value or 0,)
    elif kind == "physical":
        return (create(cuda, -(-size // PAGE) * PAGE).value,)
    elif kind == "mapped":
        size = -(-size // PAGE) * PAGE
        physical = create(cuda, size)
        where = reserve(cuda, size)
        map_at(cuda, where, size, physical)
        cuda.cuMemRelease(physical)  # the mapping keeps it
        return (where, size)
    elif kind == "pool":
        cuda.cuMemAllocAsync(c.byref(at), Size(size), None)
    return (at.value,)


def unmake(cuda: Cuda, kind: str, handles: tuple[int, ...]) -> None:
    if kind in ("plain", "managed", "pitch"):
        cuda.cuMemFree_v2(U64(handles[0]))
    elif kind in ("array", "box"):
        cuda.cuArrayDestroy(c.c_void_p(handles[0]))
    elif kind == "mipmap":
        cuda.cuMipmappedArrayDestroy(c.c_void_p(handles[0]))
    elif kind == "physical":
        cuda.cuMemRelease(U64(handles[0]))
    elif kind == "mapped":
        cuda.cuMemUnmap(U64(handles[0]), Size(handles[1]))
        cuda.cuMemAddressFree(U64(handles[0]), Size(handles[1]))
    elif kind == "pool":
        cuda.cuMemFreeAsync(U64(handles[0]), None)
        cuda.cuStreamSynchronize(None)


KINDS = ("plain", "managed", "pitch", "array", "box", "mipmap", "physical", "mapped", "pool")


def step(cuda: Cuda, seed: int, ragged: bool) -> str:
    """One random action; what it was, for the message of a failure."""
    rng = random.Random(seed)
    mine = _tenant
    here = rng.randrange(len(mine.contexts))
    cuda.cuCtxSetCurrent(mine.contexts[here])
    dice = rng.random()
    try:
        if dice < 0.5:
            kind = rng.choice(KINDS)
            mine.things.append((kind, here, make(cuda, rng, kind, ragged)))
            return f"made {kind}"
        if dice < 0.9 and mine.things:
            kind, owner, handles = mine.things.pop(rng.randrange(len(mine.things)))
            cuda.cuCtxSetCurrent(mine.contexts[owner])
            unmake(cuda, kind, handles)
            return f"freed {kind}"
        if dice < 0.93:
            pool = c.c_void_p()
            cuda.cuDeviceGetDefaultMemPool(c.byref(pool), 0)
            cuda.cuMemPoolTrimTo(pool, Size(0))
            return "trimmed the pool"
        if dice < 0.96 and len(mine.contexts) < 3:
            context = c.c_void_p()
            cuda.cuCtxCreate_v2(c.byref(context), 0, 0)
            mine.contexts.append(context)
            return "made a context"
        if dice < 0.98 and len(mine.contexts) > 1 and here == len(mine.contexts) - 1:
            mine.contexts.pop()
            # Physical memory and pools are the process's, not the context's.
            own = ("physical", "mapped", "pool")
            for kind, _, handles in [t for t in mine.things if t[1] == here and t[0] in own]:
                unmake(cuda, kind, handles)
            mine.things = [t for t in mine.things if t[1] != here]
            cuda.cuCtxDestroy_v2(cuda_context := c.c_void_p(_handle(cuda)))
            assert cuda_context
            cuda.cuCtxSetCurrent(mine.contexts[0])
            return "destroyed a context"
        cuda.kernel()
        return "loaded a module"
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return f"refused: {error.name}"


def _handle(cuda: Cuda) -> int:
    current = c.c_void_p()
    cuda.cuCtxGetCurrent(c.byref(current))
    return current.value or 0


def lend(cuda: Cuda) -> bytes:
    """Memory of this process that another one opens."""
    cuda.cuCtxSetCurrent(_tenant.contexts[0])
    at = cuda.alloc(4 * PAGE)
    _tenant.things.append(("plain", 0, (at,)))
    ticket = Ticket()
    cuda.cuIpcGetMemHandle(c.byref(ticket), U64(at))
    return bytes(ticket)


def borrow(cuda: Cuda, ticket: bytes) -> None:
    cuda.cuCtxSetCurrent(_tenant.contexts[0])
    at = U64()
    cuda.cuIpcOpenMemHandle_v2(c.byref(at), Ticket.from_buffer_copy(ticket), LAZY_PEER)
    cuda.cuIpcCloseMemHandle(at)


def own_pool(cuda: Cuda) -> None:
    """A pool of one's own: filled, emptied, destroyed."""
    cuda.cuCtxSetCurrent(_tenant.contexts[0])
    pool, at = c.c_void_p(), U64()
    cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, 0, Location(1, 0))))
    cuda.cuMemAllocFromPoolAsync(c.byref(at), Size(5 * MIB), pool, None)
    cuda.cuMemFreeAsync(at, None)
    cuda.cuStreamSynchronize(None)
    cuda.cuMemPoolDestroy(pool)


def graph_memory(cuda: Cuda) -> None:
    """Memory that a graph allocates when it is launched, freed after it."""
    cuda.cuCtxSetCurrent(_tenant.contexts[0])
    stream, at = cuda.stream(), U64()
    graph, executable = c.c_void_p(), c.c_void_p()
    cuda.cuStreamBeginCapture_v2(stream, 0)
    cuda.cuMemAllocAsync(c.byref(at), Size(5 * PAGE), stream)
    cuda.cuMemsetD8Async(at, c.c_ubyte(1), Size(100), stream)
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuMemFreeAsync(at, stream)
    cuda.cuStreamSynchronize(stream)
    cuda.cuGraphExecDestroy(executable)
    cuda.cuGraphDestroy(graph)


def contexts_of(cuda: Cuda) -> int:
    return len(_tenant.contexts)


def refuse(cuda: Cuda) -> int:
    return cuda.try_("cuMemAlloc_v2", c.byref(U64()), Size(LIMIT))


# --- outside --------------------------------------------------------------------------------------------------------


class World:
    """A simulated GPU, a grant on it, its processes, and one that looks on."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "SLUICE_SIM_DIR": str(directory / "sim"),
            "SLUICE_SIM_GPUS": "a100-40gb",
        }
        self.witness = Client(self.environment)
        uuid = self.witness.call(look_on)
        self.region = Region(
            directory / "grant",
            limits=(LIMIT,),
            uuids=(uuid,),
            driver=regions.SIM,
            nvml=regions.SIM_NVML,
            physical=40 * GIB,
        )
        self.baseline = self.witness.call(used)
        self.clients: list[Client] = []

    def client(self, index: int) -> Client | None:
        """None: the grant is too full for one more context."""
        if len(self.clients) <= index:
            client = Client(
                {
                    **self.environment,
                    "SLUICE_GRANT_DIR": str(self.region.path),
                    "TEST_CUDA": str(regions.SHIM),
                }
            )
            self.clients.append(client)
            try:
                client.call(begin)
            except CudaError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                self.kill(len(self.clients) - 1)
                return None
        return self.clients[index]

    def kill(self, index: int) -> None:
        client = self.clients.pop(index)
        client.kill()
        client.close()
        for slot, usage in enumerate(self.region.usage.slot):
            if usage.ns_pid == client.pid:
                self.region.clear_slot(slot)

    def check(self, what: str, ragged: bool) -> None:
        truth = self.witness.call(used) - self.baseline
        charged = self.region.charged()
        contexts = sum(client.call(contexts_of) for client in self.clients)
        slack = CLASSES * PAGE * contexts if ragged else 0
        assert 0 <= truth - charged <= slack, f"{what}: device {truth:,}, charged {charged:,}"
        assert charged <= LIMIT
        assert truth <= LIMIT + slack

    def close(self) -> None:
        for client in [*self.clients, self.witness]:
            client.close()


def look_on(cuda: Cuda) -> bytes:
    cuda.context()
    raw = (c.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(raw, 0)
    return bytes(raw)


@contextmanager
def world(directory: Path) -> Iterator[World]:
    it = World(directory)
    try:
        yield it
    finally:
        it.close()


def act(here: World, rng: random.Random, ragged: bool) -> str:
    """One step of the whole grant."""
    index = rng.randrange(min(len(here.clients) + 1, PROCESSES))
    dice = rng.random()
    if dice < 0.02 and index < len(here.clients):
        here.kill(index)
        return f"killed {index}"
    client = here.client(index)
    if client is None:
        return "no room for one more process"
    if dice < 0.04 and len(here.clients) > 1:
        other = here.clients[(index + 1) % len(here.clients)]
        return _unless_full(lambda: other.call(borrow, client.call(lend)), "lent memory")
    if dice < 0.06:
        return _unless_full(lambda: client.call(own_pool), "own pool")
    if dice < 0.08:
        return _unless_full(lambda: client.call(graph_memory), "memory of a graph")
    if dice < 0.09:
        assert client.call(refuse) == OUT_OF_MEMORY
        return "asked for too much"
    return f"{index} {client.call(step, rng.getrandbits(62), ragged)}"


def _unless_full(do: Any, what: str) -> str:
    try:
        do()
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return f"{what}: refused"
    return what
