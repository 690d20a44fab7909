"""Cutting simulated cards through NVML: where instances may be, who may do it, and what is in the way."""

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

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing MIG is root's")

GPUS = "h100-80gb,a100-40gb,rtx4090-24gb"
WITH = """
import ctypes, os
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex
def profiles(card=0):
    found = {}
    for index in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask(lambda: n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(card), index))
        if not isinstance(info, dict):
            found[info.name.removeprefix("MIG ")] = info
    return found
def starts(name, card=0):
    count = ctypes.c_uint(0)
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(card), profiles(card)[name].id, None, ctypes.byref(count))
    places = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(card), profiles(card)[name].id, places, ctypes.byref(count))
    return [[p.start, p.size] for p in places]
def make(name, start=None, card=0, compute=True):
    info = profiles(card)[name]
    if start is None:
        gi = n.nvmlDeviceCreateGpuInstance(gpu(card), info.id)
    else:
        place = n.c_nvmlGpuInstancePlacement_t(start, starts(name, card)[0][1])
        gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(card), info.id, ctypes.byref(place))
    if compute:
        index = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[info.sliceCount]
        ci = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, index, 0)
        n.nvmlGpuInstanceCreateComputeInstance(gi, ci.id)
    return gi
def where(gi):
    info = n.nvmlGpuInstanceGetInfo(gi)
    return [info.id, info.placement.start, info.placement.size]
def instances(card=0):
    found = []
    for info in profiles(card).values():
        count = ctypes.c_uint(info.instanceCount)
        room = (n.c_nvmlGpuInstance_t * info.instanceCount)()
        n.nvmlDeviceGetGpuInstances(gpu(card), info.id, room, ctypes.byref(count))
        found += list(room)[: count.value]
    return found
def uuids(card=0):
    found = [ask(lambda: n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(card), i))) for i in range(7)]
    return [one for one in found if isinstance(one, str)]
def unmake(gi):
    for profile in range(5):
        count = ctypes.c_uint(1)
        room = (n.c_nvmlComputeInstance_t * 1)()
        n.nvmlGpuInstanceGetComputeInstances(gi, profile, room, ctypes.byref(count))
        for ci in list(room)[: count.value]:
            n.nvmlComputeInstanceDestroy(ci)
    n.nvmlGpuInstanceDestroy(gi)
left = lambda name: n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(0), profiles()[name].id)
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def run(gpus: Card, script: str, *arguments: str, visible: str | None = None) -> Any:
    return asking.run(gpus, script, *arguments, visible=visible, cards=GPUS)


def nvml(gpus: Card, script: str) -> Any:
    return run(gpus, PRELUDE + WITH + script)


def error(code: int) -> dict[str, int]:
    return {"error": code}


def test_the_mode_changes_at_once_from_hopper_on_and_waits_for_a_reset_before(gpus: Card) -> None:
    script = """
modes = lambda: [ask(lambda: n.nvmlDeviceGetMigMode(gpu(i))) for i in (0, 1, 2)]
before = modes()
answer([before, [ask(lambda: n.nvmlDeviceSetMigMode(gpu(i), 1)) for i in (0, 1, 2)], modes()])
"""
    before, asked, after = nvml(gpus, script)
    no = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert before == [[0, 0], [0, 0], no]
    assert asked == [0, pynvml.NVML_ERROR_RESET_REQUIRED, no]
    assert after == [[1, 1], [0, 1], no]
    mode = "answer(ask(lambda: n.nvmlDeviceGetMigMode(gpu(1))))"
    gpus.control("gpu_lost=1")
    assert nvml(gpus, mode) == error(pynvml.NVML_ERROR_GPU_IS_LOST)
    gpus.control()
    assert nvml(gpus, mode) == [1, 1], "it comes back from a reset"


def test_profiles_say_where_they_may_be(gpus: Card) -> None:
    script = """
n.nvmlDeviceSetMigMode(gpu(0), 1)
answer({name: [info.id, info.sliceCount, info.instanceCount, starts(name), left(name)] for name, info in profiles().items()})
"""
    ones = [[at, 1] for at in range(7)]
    assert nvml(gpus, script) == {
        "1g.10gb": [19, 1, 7, ones, 7],
        "1g.10gb+me": [20, 1, 1, ones, 1],
        "1g.20gb": [15, 1, 4, [[0, 2], [2, 2], [4, 2], [6, 2]], 4],
        "2g.20gb": [14, 2, 3, [[0, 2], [2, 2], [4, 2]], 3],
        "3g.40gb": [9, 3, 2, [[0, 4], [4, 4]], 2],
        "4g.40gb": [5, 4, 1, [[0, 4]], 1],
        "7g.80gb": [0, 7, 1, [[0, 8]], 1],
    }


def test_instances_are_put_where_most_stays_possible_and_never_overlap(gpus: Card) -> None:
    script = """
n.nvmlDeviceSetMigMode(gpu(0), 1)
rows = [where(make("1g.10gb")), where(make("2g.20gb")), where(make("4g.40gb"))]
answer([rows, left("1g.10gb"), left("3g.40gb"), ask(lambda: make("1g.10gb")), ask(lambda: make("2g.20gb", 4)), len(uuids())])
"""
    none = error(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    assert nvml(gpus, script) == [[[13, 6, 1], [5, 4, 2], [1, 0, 4]], 0, 0, none, none, 3]


def test_an_instance_can_be_used_once_it_has_its_compute_instance(gpus: Card) -> None:
    script = """
n.nvmlDeviceSetMigMode(gpu(0), 1)
gi = make("3g.40gb", 4, compute=False)
before = uuids()
n.nvmlGpuInstanceCreateComputeInstance(gi, 2)
twice = ask(lambda: n.nvmlGpuInstanceCreateComputeInstance(gi, 2))
answer([before, uuids(), twice, ask(lambda: n.nvmlGpuInstanceDestroy(gi)), [where(one) for one in instances()]])
"""
    before, (uuid,), twice, busy, found = nvml(gpus, script)
    assert before == []
    assert twice == error(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    assert busy == error(pynvml.NVML_ERROR_IN_USE), "its compute instance goes first"
    assert found == [[2, 4, 4]]
    (device,) = run(gpus, CUDA, str(20 << 30), visible=uuid)["devices"]
    assert device[0] == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert len(run(gpus, CUDA)["devices"]) == 3
    cleared = """
for one in instances():
    unmake(one)
answer([uuids(), left("7g.80gb"), n.nvmlDeviceGetMigMode(gpu(0))])
"""
    assert nvml(gpus, cleared) == [[], 1, [1, 1]]
    assert len(run(gpus, CUDA)["devices"]) == 2, "a card in MIG mode without instances is no device"
    again = 'make("3g.40gb", 4)\nanswer(uuids())'
    assert nvml(gpus, again) == [uuid], "the same cut has the same UUIDs"


def test_only_root_may_change_anything(gpus: Card) -> None:
    script = """
n.nvmlDeviceSetMigMode(gpu(0), 1)
gi = make("1g.10gb")
os.seteuid(65534)
answer([ask(lambda: n.nvmlDeviceSetMigMode(gpu(0), 0)), ask(lambda: make("1g.10gb")), ask(lambda: unmake(gi)), left("1g.10gb")])
"""
    no = error(pynvml.NVML_ERROR_NO_PERMISSION)
    assert nvml(gpus, script) == [no, no, no, 6]


def test_who_has_a_context_is_in_the_way(gpus: Card) -> None:
    (uuid,) = nvml(gpus, 'n.nvmlDeviceSetMigMode(gpu(0), 1)\nmake("2g.20gb")\nanswer(uuids())')
    environment = {**os.environ, "SLUICE_SIM_DIR": str(gpus.directory), "LD_LIBRARY_PATH": str(SIM)}
    holder = subprocess.Popen(
        [sys.executable, "-c", CUDA, str(1 << 20)],
        env={**environment, "CUDA_VISIBLE_DEVICES": f"{uuid},1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert json.loads(holder.stdout.readline())["alloc"] == 0
    script = """
other = n.nvmlDeviceSetMigMode(gpu(1), 1)
answer([ask(lambda: unmake(instances()[0])), ask(lambda: n.nvmlDeviceSetMigMode(gpu(0), 0)), other, len(uuids())])
"""
    busy = error(pynvml.NVML_ERROR_IN_USE)
    assert nvml(gpus, script) == [busy, busy, pynvml.NVML_ERROR_RESET_REQUIRED, 1]
    holder.communicate()
    off = "unmake(instances()[0])\nanswer([n.nvmlDeviceSetMigMode(gpu(0), 0), n.nvmlDeviceGetMigMode(gpu(0))])"
    assert nvml(gpus, off) == [0, [0, 0]]


def test_a_card_that_is_used_as_a_whole_keeps_its_mode_for_now(gpus: Card) -> None:
    environment = {**os.environ, "SLUICE_SIM_DIR": str(gpus.directory), "LD_LIBRARY_PATH": str(SIM)}
    environment["SLUICE_SIM_GPUS"] = GPUS
    holder = subprocess.Popen(
        [sys.executable, "-c", CUDA, str(1 << 20)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert json.loads(holder.stdout.readline())["alloc"] == 0
    found = nvml(
        gpus, "answer([n.nvmlDeviceSetMigMode(gpu(0), 1), n.nvmlDeviceGetMigMode(gpu(0))])"
    )
    holder.communicate()
    assert found == [pynvml.NVML_ERROR_IN_USE, [0, 1]]


def test_a_process_from_before_a_change_gets_no_context_on_what_came_after(gpus: Card) -> None:
    client = gpus.client()
    client.call(_init)
    nvml(gpus, 'n.nvmlDeviceSetMigMode(gpu(0), 1)\nmake("7g.80gb")\nanswer(0)')
    assert client.call(_context) == 101, "CUDA_ERROR_INVALID_DEVICE"


def _init(cuda: Any) -> None:
    cuda.cuInit(0)


def _context(cuda: Any) -> int:
    import ctypes

    handle = ctypes.c_void_p()
    return int(cuda.try_("cuCtxCreate_v2", ctypes.byref(handle), 0, 0))
