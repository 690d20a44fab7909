"""The view that a tenant has through libnvidia-ml.so.1: its own GPUs, memory and processes; the
rest of the library as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.interpose import regions, symbols
from tests.interpose.regions import GIB, MIB, Region, stub_uuid

PRELUDE = """
nvml = ctypes.CDLL(os.environ["TEST_NVML_SHIM"])
u32 = ctypes.c_uint
def handle(index):
    device = ctypes.c_void_p()
    return nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(device)), device
def count():
    n = u32()
    assert nvml.nvmlDeviceGetCount_v2(byref(n)) == 0
    return n.value
def uuid(device):
    text = ctypes.create_string_buffer(96)
    assert nvml.nvmlDeviceGetUUID(device, text, 96) == 0
    return text.value.decode()
def index(device):
    n = u32()
    assert nvml.nvmlDeviceGetIndex(device, byref(n)) == 0
    return n.value
"""


def text_of(uuid: bytes) -> str:
    h = uuid.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def ask(region: Region, code: str, **env: str) -> dict[str, Any]:
    import textwrap

    more = {"TEST_NVML_SHIM": str(regions.NVML_SHIM), **env}
    return regions.tenant(region, PRELUDE + textwrap.dedent(code), more)


@pytest.fixture(scope="module")
def stub() -> Path:
    return regions.build("libstub_nvml.so")[0]


@pytest.fixture
def region(tmp_path: Path, stub: Path) -> Region:
    """The third and the second of four GPUs, in this order."""
    return Region(
        tmp_path / "grant",
        limits=(2 * GIB, 1 * GIB),
        uuids=(stub_uuid(2), stub_uuid(1)),
        nvml=stub,
    )


def test_only_the_grants_gpus_are_listed(region: Region) -> None:
    got = ask(
        region,
        """
        handles = [handle(i) for i in range(count())]
        answer(count=count(), uuids=[uuid(d) for _, d in handles], beyond=handle(count())[0],
               indices=[index(d) for _, d in handles])
        """,
        STUB_DEVICES="4",
    )
    assert got["count"] == 2
    assert got["uuids"] == [text_of(stub_uuid(1)), text_of(stub_uuid(2))], "in NVML's order"
    assert got["indices"] == [0, 1]
    assert got["beyond"] == 2, "invalid argument"


def test_a_neighbours_gpu_is_not_found_by_any_name(region: Region) -> None:
    got = ask(
        region,
        f"""
        def by(call, name):
            device = ctypes.c_void_p()
            return getattr(nvml, call)(name, byref(device)), device.value is not None
        answer(own=by("nvmlDeviceGetHandleByUUID", {text_of(stub_uuid(2)).encode()!r}),
               other=by("nvmlDeviceGetHandleByUUID", {text_of(stub_uuid(3)).encode()!r}),
               nobodys=by("nvmlDeviceGetHandleByUUID", b"GPU-nonsense"),
               bus=by("nvmlDeviceGetHandleByPciBusId_v2", b"3"),
               own_bus=by("nvmlDeviceGetHandleByPciBusId_v2", b"1"))
        """,
        STUB_DEVICES="4",
    )
    assert got["own"] == [0, True]
    assert got["other"] == [6, False]
    assert got["nobodys"] == [6, False]
    assert got["bus"] == [6, False]
    assert got["own_bus"] == [0, True]


def test_memory_is_the_grants(region: Region) -> None:
    slot = region.usage.slot[0]
    slot.self_claim = 1
    region.usage.header.claim_high = 1
    slot.dev[1].charged_bytes = 300 * MIB
    got = ask(
        region,
        """
        _, device = handle(0)
        v1, v2 = (u64 * 3)(), (u64 * 5)()
        assert nvml.nvmlDeviceGetMemoryInfo(device, v1) == 0
        assert nvml.nvmlDeviceGetMemoryInfo_v2(device, v2) == 0
        answer(v1=list(v1), v2=list(v2))
        """,
        STUB_DEVICES="4",
    )
    total, used = 1 * GIB, 300 * MIB
    assert got["v1"] == [total, total - used, used]
    assert got["v2"][1:] == [total, 0, total - used, used]


def test_a_tenants_own_memory_limits_are_refused_as_without_rights(region: Region) -> None:
    """The stub would take them; root in a container must not move its wall, or a neighbour's."""
    got = ask(
        region,
        """
        _, device = handle(0)
        class Limits(ctypes.Structure):
            _fields_ = [("path", ctypes.c_char_p), ("soft", u64), ("hard", u64)]
        limits = Limits(b"/sys/fs/cgroup/x", 0, 2**64 - 1)
        answer(set=nvml.nvmlDeviceSetMemoryLimits_v1(device, byref(limits)),
               nothing=nvml.nvmlDeviceSetMemoryLimits_v1(device, None))
        """,
        STUB_DEVICES="4",
    )
    assert (got["set"], got["nothing"]) == (4, 2)


def test_processes_are_the_grants(region: Region) -> None:
    slot = region.usage.slot[0]
    slot.self_claim = os.getpid() << 32 | 1
    region.usage.header.claim_high = 1
    got = ask(
        region,
        """
        class Process(ctypes.Structure):
            _fields_ = [("pid", u32), ("bytes", u64), ("instances", u32 * 2)]
        _, device = handle(0)
        def processes(room):
            n, rows = u32(room), (Process * max(room, 1))()
            r = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(n), rows if room else None)
            return r, n.value, [[p.pid, p.bytes] for p in rows[:n.value]] if room and not r else []
        answer(room=processes(8), none=processes(0), old=nvml.nvmlDeviceGetComputeRunningProcesses(
            device, byref(u32()), None))
        """,
        STUB_DEVICES="4",
        STUB_PID=str(os.getpid()),
    )
    assert got["room"] == [0, 1, [[os.getpid(), 2 * GIB]]]
    assert got["none"] == [7, 1, []], "how many there are, as the real one says it"
    assert got["old"] == 13, "a function the real library does not have"


def test_lists_of_newer_and_older_kinds_show_our_processes_only(region: Region) -> None:
    slot = region.usage.slot[0]
    slot.self_claim = os.getpid() << 32 | 1
    region.usage.header.claim_high = 1
    got = ask(
        region,
        """
        class Use(ctypes.Structure):
            _fields_ = [("time", u64), ("pid", u32), ("percent", u32 * 6)]
        class Uses(ctypes.Structure):
            _fields_ = [("version", u32), ("count", u32), ("since", u64),
                        ("rows", ctypes.POINTER(Use))]
        class Detail(ctypes.Structure):
            _fields_ = [("pid", u32), ("bytes", u64), ("instances", u32 * 2), ("protected", u64)]
        class Details(ctypes.Structure):
            _fields_ = [("version", u32), ("mode", u32), ("count", u32),
                        ("rows", ctypes.POINTER(Detail))]
        _, device = handle(0)
        uses, rows = Uses(0x1000018, 8, 0, (Use * 8)()), None
        r = nvml.nvmlDeviceGetProcessesUtilizationInfo(device, byref(uses))
        used = [r, [[uses.rows[i].pid, uses.rows[i].percent[0]] for i in range(uses.count)]]
        details = Details(0x1000018, 0, 8, (Detail * 8)())
        r = nvml.nvmlDeviceGetRunningProcessDetailList(device, byref(details))
        listed = [r, [[details.rows[i].pid, details.rows[i].bytes] for i in range(details.count)]]
        count, pids, stats = u32(8), (u32 * 8)(), (u32 * 64)()
        r = nvml.nvmlDeviceGetAccountingPids(device, byref(count), pids)
        accounted = [r, list(pids[:count.value])]
        small = Uses(0x1000018, 0, 0, None)
        answer(used=used, listed=listed, accounted=accounted,
               own=nvml.nvmlDeviceGetAccountingStats(device, pids[0], stats),
               other=nvml.nvmlDeviceGetAccountingStats(device, 4000000, stats),
               small=[nvml.nvmlDeviceGetProcessesUtilizationInfo(device, byref(small)), small.count])
        """,
        STUB_DEVICES="4",
        STUB_PID=str(os.getpid()),
    )
    assert got["used"] == [0, [[os.getpid(), 10]]]
    assert got["listed"] == [0, [[os.getpid(), 2 * GIB]]]
    assert got["accounted"] == [0, [os.getpid()]]
    assert (got["own"], got["other"]) == (0, 6)
    assert got["small"] == [7, 3], "how much room is wanted, as the real one says it"


def test_without_a_grant_everything_is_handed_on(
    region: Region, tmp_path: Path, stub: Path
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "libnvidia-ml.so.1").symlink_to(stub)
    region.path = tmp_path / "nowhere"
    got = ask(
        region,
        """
        _, device = handle(3)
        v1 = (u64 * 3)()
        assert nvml.nvmlDeviceGetMemoryInfo(device, v1) == 0
        answer(count=count(), index=index(device), memory=list(v1))
        """,
        STUB_DEVICES="4",
        LD_LIBRARY_PATH=str(alone),
    )
    assert got["count"] == 4
    assert got["index"] == 3
    assert got["memory"] == [16 * GIB, 10 * GIB, 6 * GIB]


def test_every_trampoline_reaches_its_own_function(region: Region) -> None:
    names = symbols.listed("nvml/forward.def", "FORWARD")
    got = ask(
        region,
        f"""
        with open("/proc/self/maps") as f:
            nvml.nvmlInit_v2()
            path = next(line.split(maxsplit=5)[5].strip() for line in f if "stub_nvml" in line)
        real = ctypes.CDLL(path)
        answer(wrong=[n for n in {names!r}
                      if not getattr(nvml, n)() == getattr(real, n)() == getattr(nvml, n)()])
        """,
    )
    assert len(names) > 300
    assert got["wrong"] == []


def test_what_a_context_itself_takes_is_charged_by_nvmls_figure(tmp_path: Path, stub: Path) -> None:
    region = Region(tmp_path / "grant", nvml=stub)
    got = ask(
        region,
        """
        def now():
            return stub().stub_used(0), info()[1] - info()[0]
        init()
        seen = [now()]
        assert alloc(6 << 20)[0] == 0
        seen.append(now())
        context = ctypes.c_void_p()
        assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
        assert alloc(8 << 20)[0] == 0
        seen.append(now())
        assert cuda.cuCtxDestroy_v2(context) == 0
        seen.append(now())
        assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
        init()
        seen.append(now())
        answer(seen=seen)
        """,
        STUB_DRIVER=str(regions.STUB),
    )
    context = 16 * MIB
    used = [context, context + 6 * MIB, 2 * context + 14 * MIB, context + 6 * MIB, context]
    assert [driver for driver, _ in got["seen"]] == used
    assert [charged for _, charged in got["seen"]] == used


def test_a_context_that_does_not_fit_is_refused_and_undone(tmp_path: Path, stub: Path) -> None:
    region = Region(tmp_path / "grant", limits=(20 * MIB,), nvml=stub)
    got = ask(
        region,
        """
        init()
        context = ctypes.c_void_p()
        refused = cuda.cuCtxCreate_v2(byref(context), 0, 0)
        answer(refused=refused, used=stub().stub_used(0), room=alloc(4 << 20)[0], more=alloc(1)[0])
        """,
        STUB_DRIVER=str(regions.STUB),
    )
    assert got["refused"] == 2
    assert got["used"] == 16 * MIB, "only the first one is there"
    assert got["room"] == 0
    assert got["more"] == 2


def test_a_primary_context_that_threads_retain_at_once_is_charged_once(
    tmp_path: Path, stub: Path
) -> None:
    region = Region(tmp_path / "grant", nvml=stub)
    got = ask(
        region,
        """
        import threading
        assert cuda.cuInit(0) == 0
        together = threading.Barrier(8, timeout=20)
        def retain():
            context = ctypes.c_void_p()
            together.wait()
            for _ in range(50):
                assert cuda.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
            together.wait()
            for _ in range(50):
                assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
        rounds = []
        for _ in range(10):
            threads = [threading.Thread(target=retain) for _ in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
            init()
            rounds.append([stub().stub_used(0), info()[1] - info()[0]])
            assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
            assert stub().stub_used(0) == 0
        answer(rounds=rounds)
        """,
        STUB_DRIVER=str(regions.STUB),
    )
    assert got["rounds"] == [[16 * MIB, 16 * MIB]] * 10


@pytest.mark.parametrize(("query_us", "least", "most"), [(0, 3, 1000), (20_000, 1, 6)])
def test_slow_queries_are_made_less_often(
    tmp_path: Path, stub: Path, query_us: int, least: int, most: int
) -> None:
    """Ten a second of 20 ms were a fifth of a processor, and of the driver's lock."""
    got = ask(
        Region(tmp_path / "grant", nvml=stub),
        """
        import time
        init()
        with open("/proc/self/maps") as f:
            path = next(line.split(maxsplit=5)[5].strip() for line in f if "stub_nvml" in line)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert cuda.cuCtxSynchronize() == 0
            time.sleep(0.001)
        answer(queries=ctypes.CDLL(path).stub_nvml_queries())
        """,
        STUB_DRIVER=str(regions.STUB),
        STUB_QUERY_US=str(query_us),
    )
    assert least <= got["queries"] <= most
