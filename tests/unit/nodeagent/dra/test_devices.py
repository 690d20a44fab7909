"""How a GPU is published: what the scheduler may allocate of it, and when it may not be allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.dra.devices import DeviceFacts, DeviceRules, device, semantic
from nodeagent.core.dra.pool import Body, bodies, normal, plan, read_slice, slice_name
from nodeagent.core.gpus.health import Health
from nodeagent.core.grants.placement import Load
from nodeagent.units import GpuUuid

MIB, GIB = 2**20, 2**30
UUID = GpuUuid("GPU-00000000-1111-2222-3333-444444444444")
FACTS = DeviceFacts(
    UUID, 0, "NVIDIA H100", 80 * GIB, 80 * GIB, 10, driver_version="580.65.06", cuda_version="13.0",
    architecture="Hopper", compute_capability="9.0", pci_bus_id="00000000:65:00.0", pcie_root="pci0000:64", numa_node=1,
)  # fmt: skip
RULES = DeviceRules()


def capacity(facts: DeviceFacts, rules: DeviceRules = RULES) -> Any:
    found = device(facts, rules)
    return None if found is None else found["capacity"]


def test_a_card_is_for_many_claims() -> None:
    found = device(FACTS, RULES)
    assert found is not None
    assert found["allowMultipleAllocations"] is True
    assert found["name"] == "gpu-00000000-1111-2222-3333-444444444444"
    assert found["capacity"] == {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
        "slots": {"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }  # fmt: skip


def test_it_is_selected_by_our_names_and_by_those_that_others_select_by() -> None:
    found = device(FACTS, RULES)
    assert found is not None
    attributes = found["attributes"]
    for name in ("productName", "gpu.nvidia.com/productName"):
        assert attributes[name] == {"string": "NVIDIA H100"}
    for name in ("driverVersion", "gpu.nvidia.com/driverVersion"):
        assert attributes[name] == {"version": "580.65.6"}
    assert attributes["resource.kubernetes.io/pciBusID"] == {"string": "0000:65:00.0"}
    assert attributes["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:64"}
    assert attributes["resource.kubernetes.io/numaNode"] == {"int": 1}
    assert len(attributes) + len(found["capacity"]) <= 32, "Kubernetes' own bound"


def test_what_others_hold_is_not_offered() -> None:
    found = capacity(replace(FACTS, others=Load(30 * GIB, 250_001, 250_001, 2)))
    assert found["memory"]["value"] == "50Gi"
    assert found["cores"]["value"] == "74", "a part of a percent cannot be promised"
    assert found["slots"]["value"] == "8"


@pytest.mark.parametrize(
    "others",
    [
        Load(exclusive=True, grants=1),
        Load(80 * GIB, grants=1),
        Load(grants=10),
        Load(grants=1, groups=frozenset({"uid 1000/a"})),
    ],
    ids=["alone on it", "no memory", "no slot", "a trusted group's"],
)
def test_a_card_of_which_nothing_is_left_is_not_there(others: Load) -> None:
    assert device(replace(FACTS, others=others), RULES) is None


def test_a_card_without_time_left_still_has_memory() -> None:
    found = capacity(replace(FACTS, others=Load(GIB, 1_000_000, 1_000_000, 1)))
    assert found["cores"] == {"value": "0", "requestPolicy": {"default": "0", "validValues": ["0"]}}


def test_memory_promised_more_than_once_is_never_one_claims() -> None:
    found = capacity(replace(FACTS, memory_bytes=160 * GIB))
    assert (found["memory"]["value"], found["memory"]["requestPolicy"]["validRange"]["max"]) == (
        "160Gi",
        "80Gi",
    )


def test_whole_cards_are_for_one_claim_at_a_time() -> None:
    found = device(FACTS, DeviceRules(whole=True))
    assert found is not None
    assert "allowMultipleAllocations" not in found
    assert found["capacity"] == {"memory": {"value": "80Gi"}}


@pytest.mark.parametrize(
    ("health", "evict", "effects"),
    [
        (Health.HEALTHY, True, []),
        (Health.SUSPECT, True, []),
        (Health.DEGRADED, True, []),
        (Health.UNHEALTHY, True, ["NoExecute"]),
        (Health.UNHEALTHY, False, ["NoSchedule"]),
        (Health.LOST, True, ["NoExecute"]),
        (Health.RECOVERING, True, ["NoSchedule"]),
    ],
)
def test_health_is_a_taint(health: Health, evict: bool, effects: list[str]) -> None:
    found = device(replace(FACTS, health=health), DeviceRules(evict=evict))
    assert found is not None
    assert [one["effect"] for one in found.get("taints", [])] == effects
    assert found["attributes"]["health"] == {"string": health.value}


def test_a_card_that_is_being_cut_takes_nobody() -> None:
    found = device(replace(FACTS, withheld=True), RULES)
    assert found is not None
    assert found["taints"][0]["effect"] == "NoSchedule"


def test_a_cordoned_card_takes_no_new_claim_and_keeps_those_that_it_has() -> None:
    found = device(replace(FACTS, cordoned=True), RULES)
    assert found is not None
    (taint,) = found["taints"]
    assert (taint["value"], taint["effect"]) == ("cordoned", "NoSchedule")


@pytest.mark.parametrize(
    ("text", "version"),
    [("580.65.06", "580.65.6"), ("13.0", "13.0.0"), ("535", "535.0.0"), ("N/A", None)],
)
def test_versions_are_such_as_kubernetes_compares(text: str, version: str | None) -> None:
    assert semantic(text) == version


# --- slices ---------------------------------------------------------------------------------------


def seen(document: Any, version: str) -> Any:
    head = {"name": document["metadata"]["name"], "resourceVersion": version, "uid": "u"}
    return read_slice({**document, "metadata": head})


def test_devices_are_split_by_the_limits_of_a_slice() -> None:
    found = bodies([{"name": f"d{n:03}"} for n in range(130)])
    assert [len(one.devices) for one in found] == [64, 64, 2]


def test_the_same_in_other_words_is_not_written_again() -> None:
    body = bodies([device(FACTS, RULES) or {}])
    (write,) = plan("n", "u", body, {}, {})
    there = seen(write.document, "5")  # type: ignore[union-attr]
    assert plan("n", "u", body, {there.name: there}, {}) == []
    text = repr(there.body.devices[0]).replace("'80Gi'", "'81920Mi'")
    said = replace(there, body=Body((eval(text),)))
    assert normal(said.body) == normal(body[0])


def test_what_an_older_server_dropped_is_not_sent_for_ever() -> None:
    body = bodies([device(FACTS, RULES) or {}])
    (write,) = plan("n", "u", body, {}, {})
    dropped = replace(seen(write.document, "5"), body=Body(({"name": "gpu"},)))  # type: ignore[union-attr]
    there = {dropped.name: dropped}
    assert plan("n", "u", body, there, {dropped.name: (write.digest, "5")}) == []  # type: ignore[union-attr]
    assert plan(
        "n",
        "u",
        body,
        {dropped.name: replace(dropped, version="6")},
        {dropped.name: (write.digest, "5")},
    )  # type: ignore[union-attr]


def test_a_taint_keeps_its_time() -> None:
    sick = device(replace(FACTS, health=Health.LOST), RULES) or {}
    (write,) = plan("n", "u", bodies([sick]), {}, {})
    there = seen(write.document, "5")  # type: ignore[union-attr]
    since = {**sick, "taints": [{**sick["taints"][0], "timeAdded": "2026-01-01T00:00:00Z"}]}
    there = replace(there, body=Body((since,)))
    other = device(replace(FACTS, uuid=GpuUuid("GPU-b"), index=1), RULES) or {}
    (again,) = plan("n", "u", bodies([sick, other]), {there.name: there}, {})
    assert again.document["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"  # type: ignore[union-attr]
    assert again.document["spec"]["pool"]["generation"] == 2  # type: ignore[union-attr]


def test_slices_of_the_longest_node_have_names() -> None:
    found = slice_name("n" * 253, 3)
    assert len(found) <= 253
    assert found != slice_name("n" * 252 + "m", 3)
