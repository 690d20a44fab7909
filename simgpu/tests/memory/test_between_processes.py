"""Memory of the simulated GPU that another process opens: the same bytes, charged to its owner."""

from __future__ import annotations

import ctypes as c

from simgpu.tests.memory.elsewhere import read_there, there, write_there
from tests.kit.simulator.clients import Card, Cuda
from tests.kit.simulator.cuda import (
    INVALID_CONTEXT,
    INVALID_HANDLE,
    INVALID_VALUE,
    LAZY_PEER,
    MAP_FAILED,
    MIB,
    PAGE,
    U64,
    Size,
    Ticket,
    get,
    observe,
    pattern,
    put,
    used,
)


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
    there.update(at=at, neighbour=neighbour)
    return bytes(ticket), data


def open_ticket(cuda: Cuda, ticket: bytes, size: int) -> bytes:
    handle, at, again = Ticket.from_buffer_copy(ticket), U64(), U64()
    # The flag is required.
    assert cuda.try_("cuIpcOpenMemHandle_v2", c.byref(at), handle, 0) == INVALID_VALUE
    cuda.cuIpcOpenMemHandle_v2(c.byref(at), handle, LAZY_PEER)
    cuda.cuIpcOpenMemHandle_v2(c.byref(again), handle, LAZY_PEER)
    assert at.value == again.value
    cuda.cuIpcCloseMemHandle(again)
    there.update(at=at.value)
    assert cuda.try_("cuMemFree_v2", at) == INVALID_VALUE
    assert cuda.try_("cuIpcGetMemHandle", c.byref(Ticket()), at) == INVALID_VALUE
    return get(cuda, at.value, size)


def close_ticket(cuda: Cuda) -> None:
    cuda.cuIpcCloseMemHandle(U64(there["at"]))
    assert cuda.try_("cuIpcCloseMemHandle", U64(there["at"])) == INVALID_VALUE
    assert (
        cuda.try_("cuMemcpyDtoH_v2", c.create_string_buffer(4), U64(there["at"]), Size(4))
        == INVALID_VALUE
    )


def open_own(cuda: Cuda, ticket: bytes) -> int:
    return cuda.try_(
        "cuIpcOpenMemHandle_v2", c.byref(U64()), Ticket.from_buffer_copy(ticket), LAZY_PEER
    )


def free_there(cuda: Cuda) -> None:
    cuda.cuMemFree_v2(U64(there["at"]))
    cuda.cuMemFree_v2(U64(there["neighbour"]))


def test_a_ticket_is_worth_nothing_when_forged_or_its_owner_is_dead(gpu: Card) -> None:
    owner, guest = gpu.client(), gpu.client()
    owner.call(observe)
    guest.call(observe)
    ticket, _ = owner.call(export, PAGE)
    assert guest.call(open_own, bytes(64)) == INVALID_HANDLE
    owner.kill()
    owner.close()
    assert guest.call(open_own, ticket) == MAP_FAILED
