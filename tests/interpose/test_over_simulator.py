"""The shim over the simulated driver, without a daemon: memory, launches, and what ends a context or a process."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, MIB, Region

GPUS = "a100-40gb,a100-40gb"
REST = 26 * MIB
"""Part of shared granules that a context's blocks may leave empty; it is not counted as the
driver's own."""
CHUNK_NS = 200_000
"""Credit in ns that a thread draws at once; see regions.Region."""

WORK = """
def kernel():
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(byref(module), b"any") == 0
    assert cuda.cuModuleGetFunction(byref(function), module, b"sim_busy_ns") == 0
    return function
def launch(function, ns, n=1):
    duration = u64(ns)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    return [cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, params, None)
            for _ in range(n)]
"""

UUIDS = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
assert cuda.cuInit(0) == 0
def uuid(i):
    raw = (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceGetUuid_v2(raw, i) == 0
    return bytes(raw).hex()
print(json.dumps([uuid(i) for i in range(2)]))
"""


@dataclass
class Node:
    environment: dict[str, str]
    uuids: tuple[bytes, ...]

    def ask(self, region: Region, code: str) -> dict[str, Any]:
        return regions.tenant(region, WORK + code, self.environment)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    environment = {
        "SLUICE_SIM_DIR": str(tmp_path_factory.mktemp("sim")),
        "SLUICE_SIM_GPUS": GPUS,
    }
    done = subprocess.run(
        [sys.executable, "-c", UUIDS, regions.SIM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return Node(environment, tuple(bytes.fromhex(u) for u in json.loads(done.stdout)))


@pytest.fixture
def region(tmp_path: Path, node: Node) -> Region:
    return Region(
        tmp_path / "grant",
        limits=(4 * GIB, 2 * GIB),
        uuids=node.uuids,
        driver=regions.SIM,
        nvml=regions.SIM_NVML,
        physical=40 * GIB,
        flags=c.FLAG_ENFORCE_MEMORY | c.FLAG_ENFORCE_SM,
    )


def test_memory_ends_at_the_grant_and_shows_the_grant(node: Node, region: Region) -> None:
    got = node.ask(
        region,
        """
init()
before = info()
held = []
while (answered := alloc(256 << 20))[0] == 0:
    held.append(answered[1])
full = info()
for p in held:
    assert free(p) == 0
answer(before=before, full=full, after=info(), held=len(held), refused=answered[0])
""",
    )
    assert got["before"][1] == 4 * GIB
    assert got["refused"] == 2
    assert got["held"] == got["before"][0] // (256 * MIB)
    assert got["full"][0] < 256 * MIB
    assert got["after"] == got["before"]
    assert region.total("peak_bytes") <= 4 * GIB


def simulated_nvml_tells_processes() -> bool:
    return hasattr(ctypes.CDLL(str(regions.SIM_NVML)), "nvmlDeviceGetHandleByUUID")


def test_the_contexts_own_memory_is_charged_and_given_back(node: Node, region: Region) -> None:
    if not simulated_nvml_tells_processes():
        pytest.skip(
            "the simulated NVML does not tell what a process uses; test_nvml.py has the stub's"
        )
    got = node.ask(
        region,
        """
init()
free_bytes, total = info()
assert alloc(100 << 20)[0] == 0
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
init()
again, _ = info()
answer(overhead=total - free_bytes, again=total - again)
""",
    )
    assert 0 < got["overhead"] < GIB
    assert got["again"] == got["overhead"], "the reset freed the allocation too"


def test_what_a_driver_takes_for_code_when_it_is_first_run_is_charged(
    node: Node, region: Region
) -> None:
    got = node.ask(
        region,
        """
os.environ["SLUICE_SIM_CODE_MIB"] = "96"
init()
f, (free_bytes, total) = kernel(), info()
p = alloc(free_bytes - (70 << 20))[1]
launch(f, 1000)
loaded, _ = info()
refused = alloc(2 << 20)[0]
g = kernel()
launch(g, 1000)
over, _ = info()
free(p)
left, _ = info()
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
init()
answer(before=free_bytes, loaded=loaded, refused=refused, over=over, left=left, after=info()[0])
""",
    )
    assert got["loaded"] == 0
    assert got["refused"] == 2
    assert got["over"] == 0, "it is there, and beyond the limit"
    assert got["left"] == got["before"] - 2 * 96 * MIB + REST
    assert got["after"] == got["before"]


def test_stacks_that_do_not_fit_the_grant_are_refused(node: Node, region: Region) -> None:
    """An A100's 108 SMs have 2,048 threads each."""
    got = node.ask(
        region,
        """
init()
limit = ctypes.c_size_t()
def stacks(kib):
    code = cuda.cuCtxSetLimit(0, ctypes.c_size_t(kib << 10))
    assert cuda.cuCtxGetLimit(byref(limit), 0) == 0
    return code, limit.value >> 10, info()[0]
before = info()[0]
answer(before=before, eight=stacks(8), thirty=stacks(30), one=stacks(1))
""",
    )
    taken = 7 * 1024 * 108 * 2048
    assert got["eight"] == [0, 8, got["before"] - taken + REST]
    assert got["thirty"] == [2, 8, got["before"] - taken + REST]
    assert got["one"][:2] == [0, 1]


def test_launches_are_charged_what_they_take(node: Node, region: Region) -> None:
    node.ask(
        region,
        """
init()
f = kernel()
assert set(launch(f, 1_000_000, 100)) == {0}
assert cuda.cuCtxSynchronize() == 0
answer()
""",
    )
    consumed, completed = region.total("consumed_ns"), region.total("completed_ns")
    assert region.total("launches") == 100
    # a chunk or two of credit is drawn and not used
    assert 95e6 <= consumed <= 106e6
    assert 0 <= consumed - completed <= CHUNK_NS


def test_launches_work_after_their_context_was_reset(node: Node, region: Region) -> None:
    got = node.ask(
        region,
        """
results = []
for _ in range(3):
    init()
    f = kernel()
    results += launch(f, 200_000, 50)
    assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
for _ in range(3):
    context = ctypes.c_void_p()
    assert cuda.cuCtxCreate_v2(byref(context), 0, 0) == 0
    results += launch(kernel(), 200_000, 50)
    assert cuda.cuCtxDestroy_v2(context) == 0
answer(results=sorted(set(results)))
""",
    )
    assert got["results"] == [0]
    assert region.total("launches") == 300
    in_flight = region.total("consumed_ns") - region.total("completed_ns")
    assert 0 <= in_flight <= CHUNK_NS, "the thread's credit; more would look busy for ever"


def test_a_reset_on_one_gpu_leaves_what_is_in_flight_on_another(node: Node, region: Region) -> None:
    node.ask(
        region,
        """
other, here = init(1), None
f = kernel()
launch(f, 2_000_000, 8)
assert cuda.cuCtxSynchronize() == 0
launch(f, 2_000_000, 8)
here = init(0)
assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
assert cuda.cuCtxSetCurrent(other) == 0
launch(f, 2_000_000, 1)
assert cuda.cuCtxSynchronize() == 0
answer()
""",
    )
    consumed, completed = region.total("consumed_ns", 1), region.total("completed_ns", 1)
    assert consumed >= 30e6
    assert 0 <= consumed - completed <= 2 * CHUNK_NS, "records of the other GPU were forgotten"


def test_a_forked_child_is_nobody_until_its_own_init(node: Node, region: Region) -> None:
    """Whatever the parent's threads had drawn, recorded or learnt is the parent's."""
    got = node.ask(
        region,
        """
context = init()
f = kernel()
launch(f, 100_000, 20)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    first = launch(f, 100_000, 1)[0]
    refused = cuda.cuInit(0)
    os.write(write, json.dumps([first, refused]).encode())
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
launch(f, 100_000, 20)
assert cuda.cuCtxSynchronize() == 0
answer(child=json.loads(os.read(read, 100)), live=[
    i for i in range(8) if alloc(1)[0] == 0])
""",
    )
    assert got["live"] == list(range(8)), "the parent goes on"
    assert got["child"][0] != 0, "the driver's answer to a child that has not initialised"
    assert region.total("launches") == 40


def test_what_a_stream_waits_is_not_gpu_time(node: Node, region: Region) -> None:
    """A kernel behind a wait for a value, which the host writes half a second later: launched from a thread that goes on."""
    told = node.ask(
        region,
        """
import time
init()
function, stream, at = kernel(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuStreamCreate(byref(stream), 1) == 0
assert cuda.cuMemHostAlloc(byref(at), ctypes.c_size_t(4096), 2) == 0
ctypes.memset(at, 0, 4096)
flag = ctypes.c_uint32.from_address(at.value)
duration = u64(2_000_000)
params = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
def go():
    return cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, None)
for _ in range(5):
    assert go() == 0
assert cuda.cuStreamSynchronize(stream) == 0
assert cuda.cuStreamWaitValue32_v2(stream, at, ctypes.c_uint32(1), 0) == 0
began = time.monotonic()
codes = [go() for _ in range(5)]
launched_s = time.monotonic() - began
time.sleep(max(0.0, 0.5 - launched_s))
waiting = cuda.cuStreamQuery(stream)
flag.value = 1
assert cuda.cuStreamSynchronize(stream) == 0
assert cuda.cuCtxSynchronize() == 0
answer(codes=codes, waiting=waiting)
        """,
    )
    assert (told["codes"], told["waiting"]) == ([0] * 5, 600)
    used_ns = region.total("consumed_ns", 0)
    assert 15_000_000 <= used_ns < 200_000_000, "20 ms of kernels; 500 ms were waited"
    assert region.total("launches", 0) == 10
