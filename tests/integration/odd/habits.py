"""Habits of programs, each as a function that returns the driver's answers.

Run straight on the driver and in a grant of the same machine: both print one JSON object by name.
Only answers that do not depend on the size of a grant are compared.
"""

from __future__ import annotations

HABITS = """
import ctypes as c, json, os, sys, threading
MIB, GIB = 1 << 20, 1 << 30
cuda = c.CDLL("libcuda.so.1")
u64, i32, size, pointer, byref = c.c_uint64, c.c_int, c.c_size_t, c.c_void_p, c.byref
class Location(c.Structure):
    _fields_ = [("type", i32), ("id", i32)]
class Physical(c.Structure):
    _fields_ = [("type", i32), ("handles", i32), ("location", Location), ("win32", pointer),
                ("flags", c.c_ubyte * 8)]
class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", i32)]
assert cuda.cuInit(0) == 0
contexts = []
for device in range(2):
    context = pointer()
    assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0
    contexts.append(context)
def on(device):
    assert cuda.cuCtxSetCurrent(contexts[device]) == 0
def used():
    found = []
    for device in range(2):
        on(device)
        cuda.cuCtxSynchronize()
        a, b = size(), size()
        assert cuda.cuMemGetInfo_v2(byref(a), byref(b)) == 0 and a.value <= b.value
        found.append(a.value)
    on(0)
    return found
def stream():
    s = pointer()
    assert cuda.cuStreamCreate(byref(s), 1) == 0
    return s
def alloc(n):
    p = u64()
    return cuda.cuMemAlloc_v2(byref(p), size(n)), p
def create(n, kind=1, place=0, handles=1):
    h = u64()
    want = Physical(1, handles, Location(kind, place))
    return cuda.cuMemCreate(byref(h), size(n), byref(want), u64(0)), h
def thread(do):
    found = []
    one = threading.Thread(target=lambda: found.append(do()))
    one.start()
    one.join()
    return found[0]

def freed_while_another_device_is_current():
    codes = set()
    for _ in range(50):
        on(0)
        s, p = stream(), u64()
        codes.add(cuda.cuMemAllocAsync(byref(p), size(64 * MIB), s))
        on(1)
        codes.add(cuda.cuMemFreeAsync(p, s))
        codes.add(cuda.cuStreamSynchronize(s))
        on(0)
        codes.add(cuda.cuStreamDestroy_v2(s))
    pool = pointer()
    codes |= {cuda.cuDeviceGetDefaultMemPool(byref(pool), 0), cuda.cuMemPoolTrimTo(pool, size(0))}
    return sorted(codes)

def freed_by_a_thread_without_a_context():
    code, p = alloc(3 * MIB)
    return [code, thread(lambda: cuda.cuMemFree_v2(p))]

def an_async_pointer_freed_plainly():
    s, p = stream(), u64()
    codes = [cuda.cuMemAllocAsync(byref(p), size(8 * MIB), s), cuda.cuStreamSynchronize(s),
             cuda.cuMemFree_v2(p), cuda.cuStreamDestroy_v2(s)]
    pool = pointer()
    cuda.cuDeviceGetDefaultMemPool(byref(pool), 0)
    return codes + [cuda.cuMemPoolTrimTo(pool, size(0))]

def freed_twice_and_never_allocated():
    code, p = alloc(MIB)
    return [code, cuda.cuMemFree_v2(p), cuda.cuMemFree_v2(p), cuda.cuMemFree_v2(u64(0)),
            cuda.cuMemFree_v2(u64(12345))]

def released_before_it_is_unmapped():
    code, h = create(32 * MIB)
    at = u64()
    allow = Access(Location(1, 0), 3)
    codes = [code, cuda.cuMemAddressReserve(byref(at), size(32 * MIB), size(0), u64(0), u64(0)),
             cuda.cuMemMap(at, size(32 * MIB), size(0), h, u64(0)),
             cuda.cuMemSetAccess(at, size(32 * MIB), byref(allow), size(1)),
             cuda.cuMemRelease(h), cuda.cuMemUnmap(at, size(32 * MIB)),
             cuda.cuMemUnmap(at, size(32 * MIB)), cuda.cuMemAddressFree(at, size(32 * MIB))]
    return codes

def its_own_handle_imported_and_released_in_either_order():
    codes = []
    for first in (0, 1):
        code, h = create(8 * MIB)
        fd, again = i32(), u64()
        codes += [code, cuda.cuMemExportToShareableHandle(byref(fd), h, 1, u64(0)),
                  cuda.cuMemImportFromShareableHandle(byref(again), pointer(fd.value), 1)]
        for one in ((h, again), (again, h))[first]:
            codes.append(cuda.cuMemRelease(one))
        os.close(fd.value)
    return codes

def slept_and_woke_at_the_same_address():
    at, codes = u64(), set()
    codes.add(cuda.cuMemAddressReserve(byref(at), size(GIB), size(0), u64(0), u64(0)))
    for _ in range(5):
        code, h = create(GIB)
        codes |= {code, cuda.cuMemMap(at, size(GIB), size(0), h, u64(0)),
                  cuda.cuMemUnmap(at, size(GIB)), cuda.cuMemRelease(h)}
    codes.add(cuda.cuMemAddressFree(at, size(GIB)))
    return sorted(codes)

def physical_memory_of_odd_places():
    codes = []
    for kind, place in ((2, 0), (3, 0), (3, 7), (4, 0), (1, 9), (0, 0), (1, -1), (77, 0)):
        for handles in (0, 1, 8):
            code, h = create(2 * MIB, kind, place, handles)
            codes.append([code, cuda.cuMemRelease(h) if code == 0 else None])
    return codes

def allocated_while_a_stream_is_captured():
    codes = []
    for mode in (0, 1, 2):
        s, p, graph = stream(), u64(), pointer()
        codes += [cuda.cuStreamBeginCapture_v2(s, mode), cuda.cuMemAllocAsync(byref(p), size(MIB), s),
                  cuda.cuMemFreeAsync(p, s), cuda.cuStreamEndCapture(s, byref(graph)),
                  cuda.cuGraphDestroy(graph), cuda.cuStreamDestroy_v2(s)]
    return codes

def asked_for_an_address_in_odd_ways():
    found = []
    for name in (b"cuMemAlloc", b"cuMemAlloc_v2", b"", b"cuNoSuch", b"cuLaunchKernel", b"cuInit"):
        for version in (0, 2000, 11050, 12000, 13060, -1):
            for flags in (0, 1, 2, 3):
                p, status = pointer(), i32(-7)
                code = cuda.cuGetProcAddress_v2(name, byref(p), version, u64(flags), byref(status))
                found.append([code, bool(p.value), status.value])
        p = pointer()
        found.append([cuda.cuGetProcAddress(name, byref(p), 11050, u64(0)), bool(p.value)])
        found.append([cuda.cuGetProcAddress_v2(name, byref(p), 12000, u64(0), None), bool(p.value)])
    return found + [cuda.cuGetProcAddress_v2(None, None, 12000, u64(0), None),
                    cuda.cuGetProcAddress(b"cuInit", None, 12000, u64(0))]

def asked_for_itself_three_levels_deep():
    found, ask = [], cuda.cuGetProcAddress_v2
    for _ in range(3):
        p = pointer()
        found.append(ask(b"cuGetProcAddress", byref(p), 12000, u64(0), None))
        ask = c.CFUNCTYPE(i32, c.c_char_p, pointer, i32, u64, pointer)(p.value)
    return found

def null_and_zero_arguments():
    p = u64()
    return [cuda.cuMemAlloc_v2(None, size(1)), cuda.cuMemAlloc_v2(byref(p), size(0)),
            cuda.cuMemGetInfo_v2(None, None), cuda.cuDeviceTotalMem_v2(None, 0),
            cuda.cuDevicePrimaryCtxRetain(None, 0), cuda.cuCtxCreate_v2(None, 0, 0),
            cuda.cuMemCreate(None, size(2 * MIB), None, u64(0)), cuda.cuStreamCreate(None, 0),
            cuda.cuMemAllocManaged(byref(p), size(0), 1), cuda.cuMemAllocManaged(None, size(1), 1)]

def devices_that_are_not_there():
    p, n, context = i32(), size(), pointer()
    return [f(device) for device in (-1, 2, 99) for f in (
        lambda d: cuda.cuDeviceGet(byref(p), d), lambda d: cuda.cuDeviceTotalMem_v2(byref(n), d),
        lambda d: cuda.cuDevicePrimaryCtxRetain(byref(context), d),
        lambda d: cuda.cuCtxCreate_v2(byref(context), 0, d),
        lambda d: cuda.cuDevicePrimaryCtxReset_v2(d))]

def without_a_current_context():
    def work():
        a, b, p = size(), size(), u64()
        cuda.cuCtxSetCurrent(None)
        return [cuda.cuMemAlloc_v2(byref(p), size(MIB)), cuda.cuMemGetInfo_v2(byref(a), byref(b)),
                cuda.cuCtxSynchronize(), cuda.cuStreamCreate(byref(pointer()), 0),
                cuda.cuCtxPopCurrent_v2(byref(pointer())), cuda.cuMemAllocManaged(byref(p), size(MIB), 1)]
    return thread(work)

def more_than_any_card_has():
    p, pitch = u64(), size()
    return [cuda.cuMemAlloc_v2(byref(p), size(1 << 45)), cuda.cuMemAlloc_v2(byref(p), size((1 << 64) - 1)),
            cuda.cuMemAllocAsync(byref(p), size(1 << 45), None), create(1 << 45)[0],
            cuda.cuMemAllocPitch_v2(byref(p), byref(pitch), size(1 << 22), size(1 << 22), 4),
            cuda.cuCtxSynchronize()]

def managed_memory_of_bad_ranges():
    p = u64()
    codes = [cuda.cuMemAllocManaged(byref(p), size(4 * MIB), 1)]
    for at, n in ((p.value, 4 * MIB), (p.value, 8 * MIB), (1, 1), (0, 0)):
        codes += [cuda.cuMemAdvise(u64(at), size(n), 1, 0),
                  cuda.cuMemPrefetchAsync(u64(at), size(n), 0, None)]
    return codes + [cuda.cuMemPrefetchAsync(p, size(4 * MIB), 9, None), cuda.cuMemFree_v2(p)]

def threads_with_streams_of_their_own():
    def work():
        on(0)
        codes = set()
        for _ in range(20):
            s = stream()
            code, p = alloc(MIB)
            codes |= {code, cuda.cuMemsetD8Async(p, 1, size(MIB), s), cuda.cuStreamSynchronize(s),
                      cuda.cuMemFree_v2(p), cuda.cuStreamDestroy_v2(s)}
        return codes
    found = []
    all_of_them = [threading.Thread(target=lambda: found.append(work())) for _ in range(16)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    return sorted(set().union(*found)), len(found)

def contexts_of_its_own_destroyed_with_memory_and_work():
    codes = []
    for _ in range(3):
        context = pointer()
        codes.append(cuda.cuCtxCreate_v2(byref(context), 0, 0))
        code, p = alloc(64 * MIB)
        codes += [code, cuda.cuMemsetD8Async(p, 1, size(64 * MIB), None),
                  cuda.cuCtxDestroy_v2(context), cuda.cuMemFree_v2(p)]
        on(0)
    return codes

def a_destroyed_context_used_again():
    context = pointer()
    codes = [cuda.cuCtxCreate_v2(byref(context), 0, 0), cuda.cuCtxDestroy_v2(context)]
    on(0)
    return codes + [cuda.cuCtxDestroy_v2(None), alloc(MIB)[0]]

def pools_of_its_own():
    class Props(c.Structure):
        _fields_ = [("type", i32), ("handles", i32), ("location", Location), ("win32", pointer),
                    ("max", size), ("usage", c.c_ushort), ("reserved", c.c_ubyte * 54)]
    props, pool, p, s, value = Props(1, 0, Location(1, 0)), pointer(), u64(), stream(), u64(1 << 40)
    codes = [cuda.cuMemPoolCreate(byref(pool), byref(props)),
             cuda.cuMemPoolSetAttribute(pool, 4, byref(value)), cuda.cuMemPoolSetAttribute(pool, 99, byref(value)),
             cuda.cuMemAllocFromPoolAsync(byref(p), size(64 * MIB), pool, s), cuda.cuMemFreeAsync(p, s),
             cuda.cuStreamSynchronize(s), cuda.cuMemPoolTrimTo(pool, size(1 << 40)),
             cuda.cuMemPoolTrimTo(pool, size(0)), cuda.cuMemPoolDestroy(pool), cuda.cuStreamDestroy_v2(s)]
    props.location = Location(1, 9)
    return codes + [cuda.cuMemPoolCreate(byref(pool), byref(props)), cuda.cuMemPoolCreate(None, None)]

def memory_of_the_host():
    a, b, block = pointer(), pointer(), c.create_string_buffer(1 << 16)
    return [cuda.cuMemAllocHost_v2(byref(a), size(MIB)), cuda.cuMemHostAlloc(byref(b), size(MIB), 7),
            cuda.cuMemFreeHost(a), cuda.cuMemFreeHost(b), cuda.cuMemHostAlloc(byref(b), size(0), 0),
            cuda.cuMemHostUnregister(block), cuda.cuMemFreeHost(None)]

def arrays_of_odd_shapes():
    class Shape(c.Structure):
        _fields_ = [("width", size), ("height", size), ("format", i32), ("channels", c.c_uint)]
    codes = []
    for width, height, form, channels in ((1024, 1024, 32, 4), (0, 0, 32, 1), (16, 0, 1, 3), (7, 5, 99, 1)):
        a = pointer()
        code = cuda.cuArrayCreate_v2(byref(a), byref(Shape(width, height, form, channels)))
        codes.append([code, cuda.cuArrayDestroy(a) if code == 0 else None])
    return codes

def limits_of_a_context():
    value, codes = size(), []
    for limit in (0, 1, 2, 3, 4, 5, 99):
        codes.append([cuda.cuCtxGetLimit(byref(value), limit), cuda.cuCtxSetLimit(limit, value)])
    return codes

def a_child_after_a_fork():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        p = u64()
        os.write(writing, bytes([cuda.cuMemAlloc_v2(byref(p), size(MIB)) % 256, cuda.cuInit(0) % 256]))
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    return list(os.read(reading, 2)), alloc(0)[0]

def closed_and_opened_again():
    close = c.CDLL(None).dlclose
    codes = []
    for _ in range(5):
        again = c.CDLL("libcuda.so.1")
        codes.append(again.cuInit(0))
        close(pointer(again._handle))
    code, p = alloc(MIB)
    return codes + [code, cuda.cuMemFree_v2(p)]

def the_primary_context_reset_under_it():
    code, p = alloc(64 * MIB)
    codes = [code, cuda.cuDevicePrimaryCtxReset_v2(0), cuda.cuMemFree_v2(p)]
    assert cuda.cuDevicePrimaryCtxRetain(byref(contexts[0]), 0) == 0
    on(0)
    code, p = alloc(MIB)
    return codes + [code, cuda.cuMemFree_v2(p)]

last = ["the_primary_context_reset_under_it"]
names = [n for n, f in list(globals().items()) if callable(f) and getattr(f, "__module__", "") == "__main__"
         and n not in ("on", "used", "stream", "alloc", "create", "thread") and not isinstance(f, type)]
found = {}
for name in [n for n in names if n not in last] + last:
    if len(sys.argv) > 1:
        print(name, file=sys.stderr, flush=True)
    on(0)
    before = used()
    answers = globals()[name]()
    found[name] = [answers, [a - b for a, b in zip(before, used())]]
print(json.dumps(found), flush=True)
"""
