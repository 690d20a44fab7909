"""Cards that are cut into MIG instances: NVML and CUDA tell the same story, and each instance has its own memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from simgpu.tests.nvml import asking
from simgpu.tests.nvml.asking import CUDA, PRELUDE
from tests.kit.places import SIM
from tests.kit.simulator.clients import Card, card

GPUS = "h100-80gb:1g.10gb+3g.40gb,a100-40gb"
MIB = 2**20


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def run(
    gpus: Card, script: str, *arguments: str, visible: str | None = None, cards: str = GPUS
) -> Any:
    return asking.run(gpus, script, *arguments, visible=visible, cards=cards)


def nvml(gpus: Card, script: str) -> Any:
    return run(gpus, PRELUDE + "n.nvmlInit()\ngpu = n.nvmlDeviceGetHandleByIndex\n" + script)


LISTING = """
v = lambda x: getattr(x, "value", x)
rows = []
for i in range(7):
    mig = ask(lambda: n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), i))
    if isinstance(mig, dict):
        rows.append(mig["error"])
        continue
    rows.append([n.nvmlDeviceGetUUID(mig), n.nvmlDeviceGetName(mig), v(n.nvmlDeviceGetGpuInstanceId(mig)),
        v(n.nvmlDeviceGetComputeInstanceId(mig)), n.nvmlDeviceGetMemoryInfo(mig).total,
        v(n.nvmlDeviceIsMigDeviceHandle(mig)),
        n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)) == n.nvmlDeviceGetUUID(gpu(0)),
        n.nvmlDeviceGetAttributes(mig).gpuInstanceSliceCount])
answer(rows)
"""


def test_nvml_shows_the_instances_of_a_card(gpus: Card) -> None:
    modes = nvml(
        gpus,
        "answer([n.nvmlDeviceGetCount(), [n.nvmlDeviceGetMigMode(gpu(i))[0] for i in (0, 1)]])",
    )
    assert modes == [2, [1, 0]]
    small, large, *none = nvml(gpus, LISTING)
    assert small[1:] == ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", 7, 0, 9984 * MIB, 1, True, 1]
    assert large[1:] == ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", 2, 0, 40320 * MIB, 1, True, 3]
    assert small[0].startswith("MIG-")
    assert large[0].startswith("MIG-")
    assert small[0] != large[0]
    assert none == [pynvml.NVML_ERROR_NOT_FOUND] * 5
    found = nvml(gpus, f"answer(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID('{large[0]}')))")
    assert found == large[1]
    assert nvml(gpus, "answer(ask(lambda: n.nvmlDeviceGetUtilizationRates(gpu(0))))") == {
        "error": pynvml.NVML_ERROR_NOT_SUPPORTED
    }


def test_cuda_uses_a_cut_card_by_way_of_an_instance(gpus: Card) -> None:
    small, large, *_ = nvml(gpus, LISTING)
    hexed = {row[0]: row[0][4:].replace("-", "") for row in (small, large)}
    everything = run(gpus, CUDA)["devices"]
    assert [one[0] for one in everything] == [small[1], "NVIDIA A100-SXM4-40GB"]
    for row in (small, large):
        (device,) = run(gpus, CUDA, visible=row[0])["devices"]
        assert device == [row[1], hexed[row[0]], row[4]]
    card_uuid = nvml(gpus, "answer(n.nvmlDeviceGetUUID(gpu(0)))")
    assert run(gpus, CUDA, visible=card_uuid)["devices"][0][1] == hexed[small[0]]


def test_an_instance_has_its_own_memory_and_nobody_elses(gpus: Card) -> None:
    small, large, *_ = nvml(gpus, LISTING)
    assert run(gpus, CUDA, str(20 << 30), visible=large[0])["alloc"] == 0
    assert run(gpus, CUDA, str(20 << 30), visible=small[0])["alloc"] == 2
    environment = {**os.environ, "SLUICE_SIM_DIR": str(gpus.directory), "LD_LIBRARY_PATH": str(SIM)}
    holder = subprocess.Popen(
        [sys.executable, "-c", CUDA, str(2 << 30)],
        env={**environment, "CUDA_VISIBLE_DEVICES": large[0]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert json.loads(holder.stdout.readline())["alloc"] == 0
    script = f"""
used = lambda uuid: n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByUUID(uuid)).used
whose = [[p.pid, p.gpuInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(gpu(0))]
answer([used({small[0]!r}), used({large[0]!r}), whose])
"""
    empty, full, whose = nvml(gpus, script)
    holder.communicate()
    assert empty == 0
    assert full >= 2 << 30
    assert whose == [[holder.pid, 2]]


@pytest.mark.parametrize(
    "cut", ["4g.40gb+4g.40gb", "9g.99gb", "1g.10gb+", "7g.80gb+1g.10gb", "1g.10gb+me+1g.10gb+me"]
)
def test_a_cut_that_cannot_be_is_refused(tmp_path: Path, cut: str) -> None:
    environment = {
        **os.environ,
        "SLUICE_SIM_DIR": str(tmp_path / "sim"),
        "SLUICE_SIM_GPUS": f"h100-80gb:{cut}",
    }
    environment["LD_LIBRARY_PATH"] = str(SIM)
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
        env=environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode != 0
    assert cut in done.stderr


def test_the_file_of_another_version_is_made_anew(tmp_path: Path) -> None:
    with card(tmp_path / "sim", GPUS) as gpus:
        nvml(gpus, "answer(n.nvmlDeviceGetCount())")
        state = gpus.directory / "state"
        state.write_bytes(b"\xa5" * state.stat().st_size)
        assert nvml(gpus, "answer(n.nvmlDeviceGetCount())") == 2
        assert [len(row) if isinstance(row, list) else row for row in nvml(gpus, LISTING)][:3] == [
            8,
            8,
            6,
        ]
        assert run(gpus, CUDA, str(1 << 20))["alloc"] == 0
