"""Ways around the interposer, each tried for real by a program inside of a grant.

Run as a script of its own: `python -I attempts.py WAY DRIVER DIRECTORY`. DRIVER is the path of the
real libcuda.so.1 as the caller found it, DIRECTORY an empty one to write to. Prints one JSON
object: `reached` (CUDA could be used), `allocated_bytes` (in total), `note`; or `not_run` with
the reason. Uses nothing but Python's library, so that it runs wherever the daemon does.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

BLOCK = 256 << 20
MAX_BLOCKS = 12
"""Three gigabytes: three times the grant of the test."""
GRANULE = 2 << 20
U64, Size, Pointer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
ref = ctypes.byref


class NotRun(Exception):
    """This host cannot try it; the text says why."""


def driver_of_the_grant(driver: str) -> str:
    """Path of the real driver; injection by mount has moved it."""
    moved = Path("/run/sluice/driver/libcuda.so.1")
    return str(moved if moved.is_file() else driver)


def grant_directory() -> Path:
    fixed = Path("/run/sluice/grant")
    if (fixed / "policy.shm").is_file():
        return fixed
    return Path(os.environ.get("SLUICE_GRANT_DIR", "/nonexistent"))


def start(cuda: Any) -> int:
    context = Pointer()
    return int(
        cuda.cuInit(0)
        or cuda.cuDevicePrimaryCtxRetain(ref(context), 0)
        or cuda.cuCtxSetCurrent(context)
    )


def fill(take: Callable[[int], int], block: int = BLOCK) -> tuple[int, int]:
    """Allocate blocks until one is refused, or MAX_BLOCKS; return the bytes and the last
    result."""
    got, answer = 0, 0
    while got < BLOCK * MAX_BLOCKS and (answer := take(block)) == 0:
        got += block
    return got, answer


def plain(cuda: Any, allocate: Any = None, note: str = "") -> dict[str, Any]:
    """Start CUDA through `cuda`, then allocate with `allocate`, or else with its cuMemAlloc."""
    code = start(cuda)
    if code:
        return {"reached": False, "allocated_bytes": 0, "note": f"refused: CUDA error {code}"}
    call = allocate or cuda.cuMemAlloc_v2
    got, answer = fill(lambda size: int(call(ref(U64()), Size(size))))
    return {"reached": True, "allocated_bytes": got, "note": note or f"then CUDA error {answer}"}


def load(path: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
    return ctypes.CDLL(path, mode=mode)


def again(way: str, arguments: list[str], **environment: str | None) -> NoReturn:
    """Execute this script again in this process, with variables changed (None: removed)."""
    after = {**os.environ, **{k: v for k, v in environment.items() if v is not None}}
    for name, value in environment.items():
        if value is None:
            after.pop(name, None)
    os.execve(sys.executable, [sys.executable, "-I", __file__, way, *arguments], after)


# --- the attempts -----------------------------------------------------------------------------


def by_name(driver: str, directory: str) -> dict[str, Any]:
    return plain(load("libcuda.so.1"))


def by_path(driver: str, directory: str) -> dict[str, Any]:
    return plain(load(driver))


def cleared_environment(driver: str, directory: str) -> dict[str, Any]:
    again(
        "by_path",
        [driver, directory],
        LD_PRELOAD=None,
        LD_LIBRARY_PATH=None,
        SLUICE_GRANT_DIR=None,
        CUDA_VISIBLE_DEVICES=None,
    )


def own_preload_first(driver: str, directory: str) -> dict[str, Any]:
    again("by_global_symbol", [driver, directory], LD_PRELOAD=driver)


def by_global_symbol(driver: str, directory: str) -> dict[str, Any]:
    return plain(ctypes.CDLL(None))


def forged_region(driver: str, directory: str) -> dict[str, Any]:
    """Use a forged copy of the region with a hundred times the limit."""
    real = grant_directory()
    policy = bytearray((real / "policy.shm").read_bytes())
    (limit,) = struct.unpack_from("<Q", policy, 128)
    struct.pack_into("<Q", policy, 128, limit * 100)
    (Path(directory) / "policy.shm").write_bytes(policy)
    (Path(directory) / "usage.shm").write_bytes(bytes(299_008))
    raw = bytearray((real / "usage.shm").read_bytes()[:64]).ljust(299_008, b"\0")
    (Path(directory) / "usage.shm").write_bytes(raw)
    again("by_name", [driver, directory], SLUICE_GRANT_DIR=directory)


def written_limits(driver: str, directory: str) -> dict[str, Any]:
    try:
        with (grant_directory() / "policy.shm").open("r+b") as file:
            file.seek(128)
            file.write(struct.pack("<Q", 1 << 40))
    except OSError as error:
        return plain(load("libcuda.so.1"), note=f"policy page: {error.strerror}")
    return plain(load("libcuda.so.1"), note="the policy page could be written")


def forged_counters(driver: str, directory: str) -> dict[str, Any]:
    """Zero the region's charges after each allocation."""
    cuda = load("libcuda.so.1")
    if start(cuda):
        return {"reached": False, "allocated_bytes": 0, "note": "refused"}
    with (grant_directory() / "usage.shm").open("r+b", buffering=0) as file:

        def take(size: int) -> int:
            code = int(cuda.cuMemAlloc_v2(ref(U64()), Size(size)))
            for slot in range(256):
                os.pwrite(file.fileno(), bytes(8), 4096 + slot * 1152 + 128)
            return code

        got, answer = fill(take)
    return {"reached": True, "allocated_bytes": got, "note": f"last CUDA error {answer}"}


def own_namespace(driver: str, directory: str) -> dict[str, Any]:
    """dlmopen: a second set of libraries in one process."""
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype, libc.dlmopen.argtypes = (
        Pointer,
        [ctypes.c_long, ctypes.c_char_p, ctypes.c_int],
    )
    handle = libc.dlmopen(-1, b"libcuda.so.1", 2)
    if not handle:
        libc.dlerror.restype = ctypes.c_char_p
        raise NotRun((libc.dlerror() or b"dlmopen failed").decode(errors="replace"))
    return plain(ctypes.CDLL("libcuda.so.1", handle=handle))


def deep_bind(driver: str, directory: str) -> dict[str, Any]:
    return plain(load("libcuda.so.1", os.RTLD_DEEPBIND | os.RTLD_NOW))


def through_get_proc_address(driver: str, directory: str) -> dict[str, Any]:
    """Request cuMemAlloc of every version and default-stream flavour, and allocate with each."""
    cuda = load("libcuda.so.1")
    if start(cuda):
        return {"reached": False, "allocated_bytes": 0, "note": "refused"}
    most, asked = 0, set()
    kind = ctypes.CFUNCTYPE(ctypes.c_int, Pointer, Size)
    for version in (3020, 7000, 10000, 11000, 12000, 13000):
        for flags in (0, 1, 2):
            found, status = Pointer(), ctypes.c_int()
            code = cuda.cuGetProcAddress_v2(
                b"cuMemAlloc", ref(found), version, U64(flags), ref(status)
            )
            if code == 0 and found.value and found.value not in asked:
                asked.add(found.value)
                call = kind(found.value)
                got, _ = fill(lambda size, call=call: int(call(ref(U64()), size)))  # type: ignore[misc]
                most += got
    return {"reached": True, "allocated_bytes": most, "note": f"{len(asked)} function(s) found"}


def export_tables(driver: str, directory: str) -> dict[str, Any]:
    """The driver's private tables, by identifiers that are widely known."""
    cuda = load("libcuda.so.1")
    if start(cuda):
        return {"reached": False, "allocated_bytes": 0, "note": "refused"}
    known = (
        "6bd5fb6c5bf4e74a8987d93912fd9df9"
        "c693336e1121df11a8c368f355d89593"
        "a094798c2e742e7493f20800200c0a66"
    )
    given = 0
    for i in range(0, len(known), 32):
        table, name = (
            Pointer(),
            (ctypes.c_ubyte * 16).from_buffer_copy(bytes.fromhex(known[i : i + 32])),
        )
        given += cuda.cuGetExportTable(ref(table), name) == 0 and bool(table.value)
    after = plain(cuda)
    return {**after, "note": f"{given} table(s) handed out"}


def symbol_walk(driver: str, directory: str) -> dict[str, Any]:
    """Find the real driver among the loaded files and its functions in its own symbol table."""
    cuda = load("libcuda.so.1")
    if start(cuda):
        return {"reached": False, "allocated_bytes": 0, "note": "refused"}
    real = os.stat(driver_of_the_grant(driver))
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if line.count(" ") >= 5]
    bases = [
        int(line[0].split("-")[0], 16)
        for line in lines
        if len(line) >= 6 and line[2] == "00000000" and _is_file(line[5], real)
    ]
    if not bases:
        raise NotRun("the driver was not found among the mapped files")
    offset = _symbol(Path(driver_of_the_grant(driver)), b"cuMemAlloc_v2")
    call = ctypes.CFUNCTYPE(ctypes.c_int, Pointer, Size)(bases[0] + offset)
    got, answer = fill(lambda size: int(call(ref(U64()), size)))
    return {"reached": True, "allocated_bytes": got, "note": f"then CUDA error {answer}"}


def _is_file(path: str, real: os.stat_result) -> bool:
    try:
        seen = os.stat(path)
    except OSError:
        return False
    return (seen.st_dev, seen.st_ino) == (real.st_dev, real.st_ino)


def _symbol(path: Path, name: bytes) -> int:
    """Address of a dynamic symbol in a 64-bit ELF file, relative to where it is loaded."""
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", data, table + i * size) for i in range(count)]
    for kind, offset, length, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 11:  # SHT_DYNSYM
            continue
        names = sections[link][4]
        for at in range(offset, offset + length, 24):
            where, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if section and data[names + where : names + where + len(name) + 1] == name + b"\0":
                return int(value)
    raise NotRun(f"{path} has no symbol {name.decode()}")


def own_copy(driver: str, directory: str) -> dict[str, Any]:
    copy = Path(directory) / "another-name.so"
    shutil.copyfile(driver_of_the_grant(driver), copy)
    return plain(load(str(copy)))


def own_copy_managed(driver: str, directory: str) -> dict[str, Any]:
    """Allocate managed memory through a private copy of the library."""
    copy = Path(directory) / "another-name.so"
    shutil.copyfile(driver_of_the_grant(driver), copy)
    cuda = load(str(copy))
    return plain(cuda, lambda at, size: cuda.cuMemAllocManaged(at, size, 1))


def no_room_to_load(driver: str, directory: str) -> dict[str, Any]:
    """Leave so little address space that the interposer might fail to load, and the program would
    run without it."""
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    room = pages * resource.getpagesize() + (48 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    cuda = load("libcuda.so.1")
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return plain(cuda)


def forked_child(driver: str, directory: str) -> dict[str, Any]:
    """Allocate in a forked child, whose copy of memory states that it is registered."""
    cuda = load("libcuda.so.1")
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(plain(cuda)).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    answer: dict[str, Any] = json.loads(os.read(read, 65_536))
    return answer


def executed_child(driver: str, directory: str) -> dict[str, Any]:
    again("by_name", [driver, directory])


def allocating(
    take: Callable[[Any, int], int], block: int = BLOCK
) -> Callable[[str, str], dict[str, Any]]:
    def way(driver: str, directory: str) -> dict[str, Any]:
        cuda = load("libcuda.so.1")
        if code := start(cuda):
            return {"reached": False, "allocated_bytes": 0, "note": f"refused: {code}"}
        got, answer = fill(lambda size: take(cuda, size), block)
        return {"reached": True, "allocated_bytes": got, "note": f"then CUDA error {answer}"}

    return way


class _Array(ctypes.Structure):
    _fields_ = [
        ("width", Size),
        ("height", Size),
        ("depth", Size),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    ]


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Physical(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", Pointer),
        ("flags", ctypes.c_ubyte * 8),
    ]


def _pitched(cuda: Any, size: int) -> int:
    """Rows of one byte, which the driver pads to hundreds."""
    return int(cuda.cuMemAllocPitch_v2(ref(U64()), ref(Size()), Size(1), Size(size // 512), 4))


def _array(cuda: Any, size: int) -> int:
    shape = _Array(8192, size // 32_768, 0, 32, 1, 0)
    return int(cuda.cuArray3DCreate_v2(ref(Pointer()), ref(shape)))


def _mipmap(cuda: Any, size: int) -> int:
    shape = _Array(8192, size // 32_768, 0, 32, 1, 0)
    return int(cuda.cuMipmappedArrayCreate(ref(Pointer()), ref(shape), 1))


def _mapped(cuda: Any, size: int) -> int:
    """Create, map, release: the memory is held by the mapping alone."""
    handle, at = U64(), U64()
    kind = _Physical(1, 0, _Location(1, 0))
    code = cuda.cuMemCreate(ref(handle), Size(size), ref(kind), U64(0))
    if code:
        return int(code)
    return int(
        cuda.cuMemAddressReserve(ref(at), Size(size), Size(0), U64(0), U64(0))
        or cuda.cuMemMap(at, Size(size), Size(0), handle, U64(0))
        or cuda.cuMemRelease(handle)
    )


class _PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", Pointer),
        ("rest", ctypes.c_ubyte * 64),
    ]


class _AllocNode(ctypes.Structure):
    _fields_ = [
        ("props", _PoolProps),
        ("access", Pointer),
        ("accesses", Size),
        ("bytes", Size),
        ("at", U64),
    ]


def _graph(cuda: Any, size: int) -> int:
    """A graph whose only node allocates, launched once; its memory is never freed."""
    graph, executable = Pointer(), Pointer()
    node = _AllocNode(_PoolProps(1, 0, _Location(1, 0)), None, 0, size, 0)
    return int(
        cuda.cuGraphCreate(ref(graph), 0)
        or cuda.cuGraphAddMemAllocNode(ref(Pointer()), graph, None, Size(0), ref(node))
        or cuda.cuGraphInstantiateWithFlags(ref(executable), graph, U64(0))
        or cuda.cuGraphLaunch(executable, None)
    )


WAYS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    way.__name__: way
    for way in (
        by_name,
        by_path,
        by_global_symbol,
        cleared_environment,
        own_preload_first,
        forged_region,
        written_limits,
        forged_counters,
        own_namespace,
        deep_bind,
        through_get_proc_address,
        export_tables,
        symbol_walk,
        own_copy,
        own_copy_managed,
        no_room_to_load,
        forked_child,
        executed_child,
    )
} | {
    "managed_memory": allocating(lambda c, n: int(c.cuMemAllocManaged(ref(U64()), Size(n), 1))),
    "pitched_memory": allocating(_pitched),
    "arrays": allocating(_array),
    "mipmaps": allocating(_mipmap),
    "mapped_memory": allocating(_mapped),
    "graph_memory": allocating(_graph),
    "pools": allocating(lambda c, n: int(c.cuMemAllocAsync(ref(U64()), Size(n), None))),
}


def main() -> int:
    _, way, driver, directory = sys.argv
    try:
        answer = WAYS[way](driver, directory)
    except NotRun as reason:
        answer = {"not_run": str(reason)}
    except (OSError, AttributeError) as error:
        answer = {"reached": False, "allocated_bytes": 0, "note": f"refused: {error}"}
    print(json.dumps(answer), flush=True)
    sys.stdin.read()  # Hold the memory until the caller has read the counters.
    return 0


if __name__ == "__main__":
    sys.exit(main())
