"""The faults a test can ask the simulated driver for, and how a process sees its devices."""

from __future__ import annotations

import ctypes as c
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.simulator.clients import Card, Cuda, card

NO_DEVICE, DEVICE_UNAVAILABLE, NOT_INITIALIZED, OUT_OF_MEMORY, DRIVER_MISMATCH = 100, 46, 3, 2, 803
MODELS = {
    "h200-141gb": ("NVIDIA H200", 132, (9, 0)),
    "h100-80gb": ("NVIDIA H100 80GB HBM3", 132, (9, 0)),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", 108, (8, 0)),
    "v100-32gb": ("Tesla V100-SXM2-32GB", 80, (7, 0)),
    "rtx4090-24gb": ("NVIDIA GeForce RTX 4090", 128, (8, 9)),
}


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", "2xh100-80gb,a100-40gb") as it:
        yield it


def start(cuda: Cuda) -> int:
    return cuda.try_("cuInit", 0)


def devices(cuda: Cuda) -> list[tuple[str, str]]:
    """(name, UUID) of every device this process sees."""
    cuda.cuInit(0)
    n, seen = c.c_int(), []
    cuda.cuDeviceGetCount(c.byref(n))
    for i in range(n.value):
        name, uuid = c.create_string_buffer(100), (c.c_ubyte * 16)()
        cuda.cuDeviceGetName(name, 100, i)
        cuda.cuDeviceGetUuid_v2(uuid, i)
        text = bytes(uuid).hex()
        seen.append(
            (
                name.value.decode(),
                f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}",
            )
        )
    return seen


def facts(cuda: Cuda) -> tuple[str, int, tuple[int, int], int]:
    cuda.cuInit(0)
    name, value, numbers, total = c.create_string_buffer(100), c.c_int(), [], c.c_size_t()
    cuda.cuDeviceGetName(name, 100, 0)
    for attribute in (16, 75, 76):
        cuda.cuDeviceGetAttribute(c.byref(value), attribute, 0)
        numbers.append(value.value)
    cuda.cuDeviceTotalMem_v2(c.byref(total), 0)
    return name.value.decode(), numbers[0], (numbers[1], numbers[2]), total.value


@pytest.mark.parametrize("key", MODELS)
def test_models_have_their_real_figures(tmp_path: Path, key: str) -> None:
    with card(tmp_path / "sim", key) as it:
        name, sms, capability, total = it.client().call(facts)
    assert (name, sms, capability) == MODELS[key]
    advertised = int(key.split("-")[1].removesuffix("gb")) * 1e9
    assert 0.9 * advertised < total < 1.1 * advertised


def test_an_unknown_model_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with card(tmp_path / "sim", "h100-80gb,voodoo2") as it:
        assert it.client().call(start) == NO_DEVICE
        it.close()
    assert "voodoo2" in capfd.readouterr().err


def test_visible_devices_by_index_uuid_and_order(gpus: Card) -> None:
    everything = gpus.client().call(devices)
    assert [name for name, _ in everything] == ["NVIDIA H100 80GB HBM3"] * 2 + [
        "NVIDIA A100-SXM4-40GB"
    ]
    uuids = [uuid for _, uuid in everything]
    assert len(set(uuids)) == 3

    def seen(variable: str) -> list[str]:
        return [uuid for _, uuid in gpus.client(CUDA_VISIBLE_DEVICES=variable).call(devices)]

    assert seen("2,0") == [uuids[2], uuids[0]]
    assert seen(uuids[1]) == [uuids[1]]
    assert seen(f"{uuids[2][:12]},0") == [uuids[2], uuids[0]]
    assert seen("1,9,0") == [uuids[1]], "the first that means nothing ends the list"
    assert gpus.client(CUDA_VISIBLE_DEVICES="-1").call(start) == NO_DEVICE
    assert gpus.client(CUDA_VISIBLE_DEVICES="0,0").call(start) == NO_DEVICE, "named twice"


def test_a_container_sees_the_cards_whose_nodes_it_was_given(gpus: Card, tmp_path: Path) -> None:
    uuids = [uuid for _, uuid in gpus.client().call(devices)]
    for card_number in (1, 2):
        (tmp_path / f"nvidia{card_number}").touch()
    given = {"SLUICE_SIM_NODES": str(tmp_path)}

    def seen(**more: str) -> list[str]:
        return [uuid for _, uuid in gpus.client(**given, **more).call(devices)]

    assert seen() == uuids[1:]
    assert seen(CUDA_VISIBLE_DEVICES="1,0") == [uuids[2], uuids[1]], "counted among those"
    assert seen(CUDA_VISIBLE_DEVICES=uuids[2]) == [uuids[2]]
    hidden = gpus.client(**given, CUDA_VISIBLE_DEVICES=uuids[0])
    assert hidden.call(start) == NO_DEVICE
    empty = tmp_path / "none"
    empty.mkdir()
    assert gpus.client(SLUICE_SIM_NODES=str(empty)).call(start) == NO_DEVICE


def in_a_forked_child(cuda: Cuda) -> int:
    cuda.context()
    child = os.fork()
    if child == 0:
        pointer = c.c_uint64()
        os._exit(cuda.try_("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(4096)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_no_driver(gpus: Card) -> None:
    assert gpus.client().call(in_a_forked_child) == NOT_INITIALIZED


def allocations(cuda: Cuda, count: int) -> list[int]:
    cuda.context()
    pointer = c.c_uint64()
    return [cuda.try_("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(4096)) for _ in range(count)]


def test_the_nth_call_fails(gpus: Card) -> None:
    assert gpus.client(SLUICE_SIM_FAIL="cuMemAlloc_v2:3:2").call(allocations, 5) == [
        0,
        0,
        OUT_OF_MEMORY,
        0,
        0,
    ]


def slow_calls(cuda: Cuda) -> float:
    cuda.context()
    began = time.monotonic()
    for _ in range(20):
        cuda.memory()
    return time.monotonic() - began


def test_every_call_takes_as_long_as_asked(gpus: Card) -> None:
    assert gpus.client(SLUICE_SIM_CALL_LATENCY_NS="2000000").call(slow_calls) >= 0.04


def test_a_library_that_does_not_match_its_kernel_module(gpus: Card) -> None:
    assert gpus.client(SLUICE_SIM_VERSION_SKEW="1").call(start) == DRIVER_MISMATCH


def version(cuda: Cuda) -> int:
    value = c.c_int()
    cuda.cuDriverGetVersion(c.byref(value))
    return value.value


def test_the_cuda_version_can_be_set(gpus: Card) -> None:
    assert gpus.client().call(version) == 13000
    assert gpus.client(SLUICE_SIM_CUDA_VERSION="12020").call(version) == 12020


def make_context(cuda: Cuda, device: int) -> int:
    cuda.cuInit(0)
    handle = c.c_void_p()
    return cuda.try_("cuCtxCreate_v2", c.byref(handle), 0, device)


def launch_endless(cuda: Cuda) -> None:
    cuda.launch(cuda.kernel("sim_busy_forever"))


def synchronise(cuda: Cuda) -> int:
    return cuda.try_("cuCtxSynchronize")


def test_a_gpu_that_falls_off_the_bus(gpus: Card) -> None:
    client = gpus.client()
    assert client.call(make_context, 1) == 0
    client.call(launch_endless)
    waiting = client.submit(synchronise)
    time.sleep(0.2)
    assert not waiting.done(), "a kernel that never ends"
    gpus.control("gpu_lost=1")
    assert waiting.result(60) == DEVICE_UNAVAILABLE
    assert client.call(make_context, 1) == DEVICE_UNAVAILABLE
    assert client.call(make_context, 0) == 0, "the others go on"
