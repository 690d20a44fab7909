"""Functions that test programs run on a memory pool that they share: one exports it, another
imports it.

The functions run in a client process; there is one such pool in each.
"""

from __future__ import annotations

import ctypes as c
import os
from typing import Any

from tests.kit.simulator.clients import Cuda
from tests.kit.simulator.cuda import POSIX_FD, U64, Location, PoolProps, Size, Ticket, pattern, put

here: dict[str, Any] = {}
"""The pool of this process, under `pool`."""


def make_pool(cuda: Cuda) -> int:
    """A pool that can be shared; its descriptor."""
    pool, fd = c.c_void_p(), c.c_int()
    cuda.cuMemPoolCreate(c.byref(pool), c.byref(PoolProps(1, POSIX_FD, Location(1, 0))))
    cuda.cuMemPoolExportToShareableHandle(c.byref(fd), pool, POSIX_FD, U64(0))
    here["pool"] = pool
    return fd.value


def give(cuda: Cuda, size: int, seed: int = 1) -> tuple[int, bytes]:
    """Memory of the pool with something in it: its address, and what another process needs of it."""
    at, ticket = U64(), Ticket()
    cuda.cuMemAllocFromPoolAsync(c.byref(at), Size(size), here["pool"], None)
    put(cuda, at.value, pattern(size, seed))
    cuda.cuMemPoolExportPointer(c.byref(ticket), at)
    return at.value, bytes(ticket)


def take_pool(cuda: Cuda, pid: int, fd: int) -> None:
    """Descriptors go over sockets; that of a process whom one may look at can be opened, too."""
    mine, pool = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR), c.c_void_p()
    cuda.cuMemPoolImportFromShareableHandle(c.byref(pool), c.c_void_p(mine), POSIX_FD, U64(0))
    os.close(mine)
    here["pool"] = pool


def take(cuda: Cuda, ticket: bytes) -> int:
    at = U64()
    cuda.cuMemPoolImportPointer(c.byref(at), here["pool"], c.byref(Ticket.from_buffer_copy(ticket)))
    return at.value


def give_up(cuda: Cuda, at: int, symbol: str = "cuMemFreeAsync") -> int:
    return cuda.try_(symbol, U64(at), *([None] if symbol == "cuMemFreeAsync" else []))


def drop_pool(cuda: Cuda) -> None:
    cuda.cuMemPoolDestroy(here.pop("pool"))
