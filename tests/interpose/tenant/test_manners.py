"""Manners of an injected library: changes that it must not make to its host process."""

from __future__ import annotations

import re
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import Region

LIBRARIES = {
    "shim": regions.SHIM,
    "NVML shim": regions.NVML_SHIM,
    "preload": regions.BUILD / "preload" / "libsluice.so",
}

LOOK = """
import locale, resource, signal
def look():
    with open("/proc/self/status") as f:
        status = dict(line.rstrip("\\n").split(":\\t", 1) for line in f if ":\\t" in line)
    with open("/proc/self/maps") as f:
        stacks = sum("[stack" in line for line in f)
    return {
        "umask": status["Umask"],
        "signals": [status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")],
        "threads": len(os.listdir("/proc/self/task")),
        "environment": dict(os.environ),
        "c environment": environ(),
        "directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "limits": [resource.getrlimit(k) for k in range(16)],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "dumpable": libc.prctl(3, 0, 0, 0, 0),
        "name": open("/proc/self/comm").read(),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
    }
libc = ctypes.CDLL(None, use_errno=True)
def environ():
    out, p = [], ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
    i = 0
    while p[i]:
        out.append(p[i].decode(errors="surrogateescape")); i += 1
    return sorted(out)
def descriptors():
    return sorted(os.readlink("/proc/self/fd/" + n) + ("" if os.get_inheritable(int(n)) else " (closed on exec)")
                  for n in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + n))
"""

WORK = """
def work():
    context = init()
    pointers = [alloc(1 << 20)[1] for _ in range(10)]
    for p in pointers: assert free(p) == 0
    function = ctypes.c_void_p(0x1000)
    for _ in range(300):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
    assert cuda.cuCtxSynchronize() == 0
"""


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "grant")


def tenant(region: Region, code: str, **more: str) -> dict[str, Any]:
    return regions.tenant(region, LOOK + WORK + textwrap.dedent(code), **more)


def test_nothing_of_the_process_is_changed(region: Region) -> None:
    got = tenant(
        region,
        """
        before = look()
        work()
        after = look()
        answer(changed={k: [before[k], after[k]] for k in before if before[k] != after[k]})
        """,
    )
    assert got["changed"] == {}
    assert got["stderr"] == ""


def test_what_stays_open_is_closed_on_exec(region: Region) -> None:
    got = tenant(
        region,
        """
        before = descriptors()
        work()
        answer(new=[d for d in descriptors() if d not in before])
        """,
    )
    assert all(d.endswith("(closed on exec)") for d in got["new"]), got["new"]
    assert len(got["new"]) <= 1, "at most the registration's socket"


def test_errno_survives_a_success(region: Region) -> None:
    got = tenant(
        region,
        """
        init()
        raw = ctypes.CDLL(SHIM, use_errno=True)
        codes = []
        for call in (lambda: raw.cuMemGetInfo_v2(byref(u64()), byref(u64())),
                     lambda: raw.cuCtxSynchronize()):
            ctypes.set_errno(77)
            assert call() == 0
            codes.append(ctypes.get_errno())
        answer(codes=codes)
        """,
    )
    assert got["codes"] == [77, 77]


def test_one_line_and_no_more_when_cuda_is_refused(region: Region) -> None:
    (region.path / "policy.shm").unlink()
    got = tenant(
        region,
        """
        answer(codes=[cuda.cuInit(0) for _ in range(5)])
        """,
    )
    assert set(got["codes"]) != {0}
    lines = got["stderr"].splitlines()
    assert len(lines) == 1, got["stderr"]
    assert lines[0].startswith("sluice: ")


def test_a_handler_of_the_programs_own_is_still_its_own(region: Region) -> None:
    got = tenant(
        region,
        """
        seen = []
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM):
            signal.signal(number, lambda n, f: seen.append(n))
        work()
        for number in (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        answer(seen=sorted(map(int, seen)))
        """,
    )
    assert got["seen"] == sorted([10, 14, 15])


@pytest.mark.parametrize("how", ["fork and exec", "vfork", "spawn"])
def test_children_by_every_way_are_processes_of_the_grant(region: Region, how: str) -> None:
    starts = {
        "fork and exec": "pid = os.fork()\nif pid == 0: os.execve(argv[0], argv, os.environ)",
        "vfork": "import subprocess; pid = subprocess.Popen(argv, close_fds=False).pid",
        "spawn": "pid = os.posix_spawn(argv[0], argv, os.environ)",
    }
    child = (
        "import ctypes, sys; cuda = ctypes.CDLL(sys.argv[1]); c = ctypes.c_void_p();"
        "p = ctypes.c_uint64(); b = ctypes.byref;"
        "sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(b(c), 0) or cuda.cuCtxSetCurrent(c)"
        " or cuda.cuMemAlloc_v2(b(p), ctypes.c_size_t(1 << 20)))"
    )
    code = (
        f"work()\nargv = [sys.executable, '-c', {child!r}, SHIM]\n{starts[how]}\n"
        "answer(status=os.waitpid(pid, 0)[1])"
    )
    got = regions.tenant(region, LOOK + WORK + code)
    assert got["status"] == 0
    assert sum(slot.ns_pid != 0 for slot in region.usage.slot) == 2


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_the_library_is_small_in_memory(library: str) -> None:
    sections = subprocess.run(
        ["readelf", "-SW", LIBRARIES[library]], capture_output=True, text=True, check=True
    ).stdout
    sizes = {
        name: int(size, 16)
        for name, size in re.findall(
            r"\] (\.t?bss)\s+NOBITS\s+[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+)", sections
        )
    }
    assert sizes.get(".bss", 0) < 256 * 1024
    assert sizes.get(".tbss", 0) < 1024, "taken from every thread of the program"
    executable_stack = subprocess.run(
        ["readelf", "-lW", LIBRARIES[library]], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"GNU_STACK.*RW ", executable_stack)
    assert not re.search(r"GNU_STACK.*RWE", executable_stack)


def test_a_process_whose_clock_is_behind_its_grants_waits_for_nobody(tmp_path: Path) -> None:
    """The clock is that of a time namespace 300 s behind: the neighbours in the grant have brought
    its virtual clock to their now, and the daemon writes its own. Launches that waited for it would
    take five minutes."""
    region = Region(tmp_path / "grant", flags=c.FLAG_ENFORCE_MEMORY | c.FLAG_ENFORCE_SM)
    ahead_ns = time.monotonic_ns() + 300_000_000_000
    region.policy.dev[0].share_ppm = 500_000
    region.policy.control.heartbeat_ns = ahead_ns
    region.usage.shared[0].tat_ns = ahead_ns
    code = """
    init()
    function = ctypes.c_void_p(0x1000)
    for _ in range(50):
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
    answer(launches=stub().stub_launches())
    """
    assert tenant(region, code, timeout=200)["launches"] >= 50
