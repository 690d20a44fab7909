"""The simulated NVML, asked through pynvml: it tells the same story as the simulated driver."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from simgpu.tests.nvml.asking import GPUS, MS, nvml, start
from tests.kit.measure import ahead
from tests.kit.simulator.clients import GIB, Card, Cuda, card

MIB = 2**20


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def test_who_attaches_no_gpus_has_none_until_somebody_does(gpus: Card) -> None:
    """Driver 580 on an H200 answers this way: 6 is "not found", 2 an invalid argument."""
    script = """NO_ATTACH = 2
n.nvmlInitWithFlags(NO_ATTACH)
def look():
    return [n.nvmlDeviceGetCount(), ask(lambda: bool(n.nvmlDeviceGetHandleByIndex(0))),
            ask(lambda: bool(n.nvmlDeviceGetHandleByUUID(SOUGHT)))]
before = look()
n.nvmlInit()
answer([before, look()])
"""
    uuid = first_uuid(gpus)
    process = start(gpus, f"SOUGHT = {uuid!r}\n" + script)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    before, after = json.loads(out)
    assert before == [0, {"error": 2}, {"error": 6}]
    assert after[0] > 0
    assert after[1:] == [True, True]


def first_uuid(gpus: Card) -> str:
    script = "n.nvmlInit()\nanswer(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))\n"
    out, _ = start(gpus, script).communicate(timeout=120)
    return str(json.loads(out))


def test_nvml_lists_the_cards_whose_nodes_are_there(gpus: Card, tmp_path: Path) -> None:
    script = """n.nvmlInit()
count = n.nvmlDeviceGetCount()
uuids = [n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
answer([uuids, ask(lambda: bool(n.nvmlDeviceGetHandleByUUID(SOUGHT)))])
"""

    def asked(sought: str, **more: str) -> tuple[list[str], Any]:
        process = start(gpus, f"SOUGHT = {sought!r}\n" + script, **more)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        uuids, found = json.loads(out)
        return uuids, found

    every, _ = asked("")
    (tmp_path / "nvidia1").touch()
    seen, sought = asked(every[0], SLUICE_SIM_NODES=str(tmp_path))
    assert seen == [every[1]]
    assert sought == {"error": 6}, "NVML_ERROR_NOT_FOUND"


def test_facts_are_the_models(gpus: Card) -> None:
    got = nvml(
        gpus,
        """
answer([[n.nvmlDeviceGetName(h), n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetIndex(h),
         n.nvmlDeviceGetPciInfo(h).busId, n.nvmlDeviceGetPciInfo(h).bus, ask(lambda: n.nvmlDeviceGetMigMode(h)),
         ask(lambda: n.nvmlDeviceGetEccMode(h)), n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), n.nvmlDeviceGetMemoryAffinity(h, 2, n.NVML_AFFINITY_SCOPE_NODE)[0]]
        for h in map(gpu, range(n.nvmlDeviceGetCount()))])
""",
    )
    unsupported = {"error": pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert got == [
        ["NVIDIA H100 80GB HBM3", [9, 0], 0, "00000000:10:00.0", 16, [0, 0], [1, 1], 1980, 1],
        ["NVIDIA H100 80GB HBM3", [9, 0], 1, "00000000:20:00.0", 32, [0, 0], [1, 1], 1980, 2],
        ["NVIDIA A100-SXM4-40GB", [8, 0], 2, "00000000:30:00.0", 48, [0, 0], [1, 1], 1410, 1],
        [
            "NVIDIA GeForce RTX 4090",
            [8, 9],
            3,
            "00000000:40:00.0",
            64,
            unsupported,
            unsupported,
            2520,
            2,
        ],
    ]


def test_a_gpu_is_found_by_every_name(gpus: Card) -> None:
    got = nvml(
        gpus,
        """
h = gpu(2)
by = [n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h)), n.nvmlDeviceGetHandleByPciBusId("0000:30:00.0"),
      n.nvmlDeviceGetHandleByPciBusId("00000000:30:00.0"), n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(h))]
answer([[n.nvmlDeviceGetIndex(x) for x in by], ask(lambda: n.nvmlDeviceGetHandleByUUID("GPU-none")),
        ask(lambda: gpu(4))])
""",
    )
    assert got == [
        [2, 2, 2, 2],
        {"error": pynvml.NVML_ERROR_NOT_FOUND},
        {"error": pynvml.NVML_ERROR_INVALID_ARGUMENT},
    ]


def hold(cuda: Cuda, size: int) -> tuple[int, int]:
    cuda.context()
    cuda.alloc(size)
    return cuda.memory()


def look(cuda: Cuda) -> tuple[int, int]:
    return cuda.memory()


MEMORY = """
h = gpu(0)
one, two = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
answer({"v1": [one.total, one.free, one.used], "v2": [two.total, two.free, two.used, two.reserved],
        "processes": {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)}})
"""


def test_memory_and_processes_agree_with_the_driver_to_the_byte(gpus: Card) -> None:
    first, second = gpus.client(), gpus.client()
    first.call(hold, 3 * GIB)
    free, total = second.call(hold, 5 * GIB)
    got = nvml(gpus, MEMORY)
    reserved = got["v2"][3]
    assert reserved > 0
    assert got["v2"] == [total + reserved, free, total - free, reserved]
    assert got["v1"] == [total + reserved, free, total - free + reserved]
    context = 520 * MIB
    assert got["processes"] == {
        str(first.pid): 3 * GIB + context,
        str(second.pid): 5 * GIB + context,
    }
    second.kill()
    end = time.monotonic() + 60
    while str(second.pid) in nvml(gpus, MEMORY)["processes"] and time.monotonic() < end:
        time.sleep(0.05)
    assert nvml(gpus, MEMORY)["processes"] == {str(first.pid): 3 * GIB + context}
    assert first.call(look)[0] == total - 3 * GIB - context


def half_busy(cuda: Cuda, seconds: float) -> None:
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cuda.launch(kernel, stream, 20 * MS)
        cuda.cuStreamSynchronize(stream)
        time.sleep(0.02)


def test_utilisation_is_what_the_timeline_was_busy(gpus: Card) -> None:
    client = gpus.client()
    ahead(client.pid)
    client.submit(half_busy, 600.0)
    got = nvml(
        gpus,
        """
h = gpu(0)
end = time.monotonic() + 60
while n.nvmlDeviceGetUtilizationRates(h).gpu < 25 and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1.2)  # more than the second over which the driver looks back
samples = n.nvmlDeviceGetProcessUtilization(h, 0)
answer([n.nvmlDeviceGetUtilizationRates(h).gpu, {s.pid: s.smUtil for s in samples}, n.nvmlDeviceGetUtilizationRates(gpu(1)).gpu,
        ask(lambda: n.nvmlDeviceGetProcessUtilization(gpu(1), 0)), n.nvmlDeviceGetPowerUsage(h) > n.nvmlDeviceGetPowerUsage(gpu(1))])
""",
    )
    whole, by_process, other, none, warmer = got
    assert 25 <= whole <= 60
    assert list(by_process) == [str(client.pid)]
    assert abs(by_process[str(client.pid)] - whole) <= 5
    assert (other, none, warmer) == (0, {"error": pynvml.NVML_ERROR_NOT_FOUND}, True)


def test_an_xid_is_delivered_once_to_each_set(gpus: Card) -> None:
    process = start(
        gpus,
        """
n.nvmlInit()
sets = []
for _ in range(2):
    s = n.nvmlEventSetCreate()
    for i in range(2):
        n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(i), n.nvmlEventTypeXidCriticalError, s)
    sets.append(s)
answer("ready")
found = []
for s in sets:
    e = n.nvmlEventSetWait_v2(s, 10000)
    found.append([n.nvmlDeviceGetIndex(e.device), e.eventData, ask(lambda: n.nvmlEventSetWait_v2(s, 100))])
answer(found)
""",
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == "ready"
    gpus.control("xid=79@1")
    assert (
        json.loads(process.stdout.readline()) == [[1, 79, {"error": pynvml.NVML_ERROR_TIMEOUT}]] * 2
    )
    process.communicate(timeout=120)


def test_a_lost_gpu_a_skewed_library_and_a_missing_init(gpus: Card) -> None:
    gpus.control("gpu_lost=1")
    got = nvml(
        gpus,
        "answer([ask(lambda: n.nvmlDeviceGetMemoryInfo(gpu(1))), n.nvmlDeviceGetName(gpu(0))])",
    )
    assert got == [{"error": pynvml.NVML_ERROR_GPU_IS_LOST}, "NVIDIA H100 80GB HBM3"]
    gpus.control("version_skew=1")
    out, _ = start(gpus, "answer(ask(n.nvmlInit))").communicate(timeout=120)
    assert json.loads(out) == {"error": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    gpus.control()
    out, _ = start(
        gpus, "n.nvmlInit(); n.nvmlShutdown(); answer(ask(n.nvmlDeviceGetCount))"
    ).communicate(timeout=120)
    assert json.loads(out) == {"error": pynvml.NVML_ERROR_UNINITIALIZED}


def test_a_hung_driver_blocks_until_it_is_well(gpus: Card) -> None:
    process = start(
        gpus,
        "n.nvmlInit(); answer('in'); sys.stdin.readline(); time.sleep(0.5); answer(n.nvmlDeviceGetCount())",
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == "in"
    gpus.control("nvml_hang=1")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    gpus.control()
    assert json.loads(process.stdout.readline()) == 4
    process.communicate(timeout=120)


def test_cards_reach_each_other_and_by_links_where_there_are_some(gpus: Card) -> None:
    got = nvml(
        gpus,
        "answer([[n.nvmlDeviceGetP2PStatus(gpu(0), gpu(other), which) for which in range(5)] for other in (1, 3)])",
    )
    fine, unsupported = 0, 3
    assert got == [
        [fine, fine, fine, fine, unsupported],
        [fine, fine, unsupported, unsupported, fine],
    ]
