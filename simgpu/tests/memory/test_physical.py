"""Physical memory and addresses of the simulated GPU: what a mapping keeps, shows and allows, in one process and in two."""

from __future__ import annotations

import ctypes as c
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from simgpu.tests.memory.elsewhere import read_there, there, write_there
from tests.kit.simulator.clients import Card, Cuda
from tests.kit.simulator.cuda import (
    GIB,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    PAGE,
    POSIX_FD,
    U64,
    Access,
    Location,
    Prop,
    Size,
    create,
    get,
    map_at,
    observe,
    pattern,
    prop,
    put,
    reserve,
    used,
)


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


def map_there(cuda: Cuda, handle: U64, size: int) -> None:
    at = reserve(cuda, size)
    map_at(cuda, at, size, handle)
    there.update(at=at, size=size, handle=handle)


def send_memory(cuda: Cuda, path: str) -> bytes:
    cuda.context()
    handle, fd = create(cuda, 4 * MIB, POSIX_FD), c.c_int()
    map_there(cuda, handle, 4 * MIB)
    data = pattern(4 * MIB)
    put(cuda, there["at"], data)
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
    return get(cuda, there["at"], 4 * MIB)


def drop_there(cuda: Cuda) -> None:
    cuda.cuMemUnmap(U64(there["at"]), Size(there["size"]))
    cuda.cuMemRelease(there["handle"])
    cuda.cuMemAddressFree(U64(there["at"]), Size(there["size"]))
