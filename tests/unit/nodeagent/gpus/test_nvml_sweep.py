"""The sweep on cards that the simulator does not have: MIG, vGPU licences, old drivers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.adapters.nvml import fields as nvml_fields
from nodeagent.adapters.nvml import sweep as nvml_sweep
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.numa import SET_WORDS, nearest_numa_node


def fails(code: int) -> Callable[..., Any]:
    def call(*_arguments: Any, **_named: Any) -> Any:
        raise pynvml.NVMLError(code)

    return call


def mig_card(monkeypatch: pytest.MonkeyPatch, enabled: int, filled: dict[int, str]) -> None:
    def handle_at(_card: str, index: int) -> str:
        if index not in filled:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return filled[index]

    answers = {
        "nvmlDeviceGetMigMode": lambda card: [enabled, enabled],
        "nvmlDeviceGetMaxMigDeviceCount": lambda card: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": handle_at,
        "nvmlDeviceGetUUID": lambda device: f"MIG-{device}",
        "nvmlDeviceGetName": lambda device: "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "nvmlDeviceGetGpuInstanceId": lambda device: 7,
        "nvmlDeviceGetComputeInstanceId": lambda device: 0,
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(total=100, used=40),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


def test_mig_devices_need_not_fill_their_places_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    mig_card(monkeypatch, pynvml.NVML_DEVICE_MIG_ENABLE, {0: "a", 5: "b"})
    found = nvml_sweep._mig("card")
    assert found is not None
    assert [one.uuid for one in found] == ["MIG-a", "MIG-b"]
    first = found[0]
    assert (first.profile, first.gpu_instance, first.memory_total_bytes, first.memory_used_bytes) == (
        "1g.10gb", 7, 100, 40,
    )  # fmt: skip


def test_switched_on_and_empty_is_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    mig_card(monkeypatch, pynvml.NVML_DEVICE_MIG_ENABLE, {})
    assert nvml_sweep._mig("card") == ()
    mig_card(monkeypatch, 0, {})
    assert nvml_sweep._mig("card") is None


@pytest.mark.parametrize(
    ("supported", "states", "licensed"),
    [(0, [1], False), (1, [0, 0], False), (1, [0, 1], True), (1, [], False)],
    ids=["not a vGPU", "none licensed", "one licensed", "nothing to license"],
)
def test_a_licence(
    monkeypatch: pytest.MonkeyPatch, supported: int, states: list[int], licensed: bool
) -> None:
    features = SimpleNamespace(
        isGridLicenseSupported=supported,
        licensableFeaturesCount=len(states),
        gridLicensableFeatures=[SimpleNamespace(featureState=state) for state in states],
    )
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGridLicensableFeatures_v4", lambda card: features)
    assert nvml_sweep._licensed("card") is licensed


@pytest.mark.parametrize(("last", "active"), [(4, 4), (18, 18)])
def test_links_are_counted_up_to_the_cards_last(
    monkeypatch: pytest.MonkeyPatch, last: int, active: int
) -> None:
    def state(_card: str, link: int) -> int:
        if link >= last:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkState", state)
    assert nvml_sweep._links("card") == active


def test_a_card_without_links_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkState", fails(pynvml.NVML_ERROR_NOT_SUPPORTED))
    with pytest.raises(pynvml.NVMLError):
        nvml_sweep._links("card")
    card = SimpleNamespace(unsupported=set())
    asked: list[int] = []

    def read() -> int:
        asked.append(1)
        return nvml_sweep._links("card")

    for _ in range(3):
        assert nvml_sweep.Sweeper._value(object(), card, "links", read) is None  # type: ignore[arg-type]
    assert len(asked) == 1, "what a card will never have is asked for once"


def test_a_passing_error_is_asked_for_again() -> None:
    card = SimpleNamespace(unsupported=set())
    answers: list[Callable[[], int]] = [fails(pynvml.NVML_ERROR_UNKNOWN), lambda: 7]
    ask = nvml_sweep.Sweeper._value
    assert ask(object(), card, "x", answers[0]) is None  # type: ignore[arg-type]
    assert ask(object(), card, "x", answers[1]) == 7  # type: ignore[arg-type]


def test_a_driver_before_535_is_asked_by_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = fails(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", gone)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda card: 0x48 | 1)
    assert nvml_sweep._throttle("card") == ("hw_slowdown", "hw_thermal_slowdown")


def test_memory_of_a_driver_before_510_has_no_reserved_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def memory(_card: str, version: int | None = None) -> Any:
        if version is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(total=100, used=30)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", memory)
    assert nvml_sweep._memory("card") == (100, 30, None)


def test_fields_are_asked_one_by_one_where_a_list_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def values(_card: str, ids: list[Any]) -> list[Any]:
        if len(ids) > 1 or ids[0] != pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return [
            SimpleNamespace(
                valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT,
                nvmlReturn=pynvml.NVML_SUCCESS,
                value=SimpleNamespace(uiVal=12),
            )
        ]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", values)
    found = nvml_fields.counters("card")
    assert found.pop("pcie_replay_total") == 12
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("words", "node"),
    [({0: 1}, 0), ({0: 1 << 5}, 5), ({1: 1 << 3}, 67), ({0: 0b11}, None), ({}, None)],
)
def test_the_numa_node_is_the_one_nearest_to_the_card(
    monkeypatch: pytest.MonkeyPatch, words: dict[int, int], node: int | None
) -> None:
    """On most machines NVML has no NUMA node of the card's own memory (nvmlDeviceGetNumaNodeId)."""

    def affinity(_card: str, count: int, scope: int) -> list[int]:
        assert (count, scope) == (SET_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        return [words.get(at, 0) for at in range(count)]

    unsupported = fails(pynvml.NVML_ERROR_NOT_SUPPORTED)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNumaNodeId", unsupported)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryAffinity", affinity)
    assert nearest_numa_node("card") == node
