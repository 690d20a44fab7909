"""Pods that ask in HAMi's words, with claims instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.gpushares.admission import (
    Rules,
    admit,
    amounts,
    share_of,
    template_of,
    templates_of,
)
from queuecontroller.gpushares.admission.as_claims import Share
from queuecontroller.gpushares.vendors.config import DeviceConfig, Nvidia

RULES = Rules(scheduler="sluice-scheduler", claims=True)
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT = "nvidia.com/gpumem-percentage"


def pod(*limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    containers = [{"name": f"c{at}", "resources": {"limits": one}} for at, one in enumerate(limits)]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **more}}


def admitted(document: dict[str, Any], rules: Rules = RULES) -> dict[str, Any]:
    verdict = admit(rules, document, "somebody", "ticket")
    assert not verdict.problems
    return dict(verdict.pod)


def refusal(document: dict[str, Any]) -> str:
    return "; ".join(map(str, admit(RULES, document, "somebody", "ticket").problems))


def test_resources_become_a_claim_and_the_scheduler_stays() -> None:
    made = admitted(pod({GPU: "1", MEM: "4000", CORES: "30", "cpu": "1"}, {"cpu": "1"}))
    assert made["spec"]["resourceClaims"] == [
        {"name": "sluice-0", "resourceClaimTemplateName": "sluice-share-1-4000mi-30"}
    ]
    first, second = made["spec"]["containers"]
    assert first["resources"] == {"limits": {"cpu": "1"}, "claims": [{"name": "sluice-0"}]}
    assert "claims" not in second["resources"]
    assert "schedulerName" not in made["spec"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: "1"}, Share(1, None, 100)),
        ({MEM: "500"}, Share(1, 500, 0)),
        ({GPU: "2", MEM: "1k", CORES: "150"}, Share(2, 1000, 100)),
        ({GPU: "1", PERCENT: "100", CORES: "5"}, Share(1, None, 5)),
    ],
    ids=["a whole card", "memory alone", "two, too many cores", "all of its memory"],
)
def test_what_is_left_out_is_as_without_claims(limits: dict[str, str], expected: Share) -> None:
    (name,) = templates_of(admitted(pod(limits))).values()
    assert share_of(name) == expected


def test_every_container_has_its_own_beside_claims_that_are_there() -> None:
    own = {"name": "mine", "resourceClaimTemplateName": "other"}
    document = pod({GPU: "1", MEM: "1"}, {GPU: "1", MEM: "2"}, resourceClaims=[own])
    document["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {MEM: "3"}}}]
    made = admitted(document)
    assert [one["name"] for one in made["spec"]["resourceClaims"]] == [
        "mine",
        "sluice-0",
        "sluice-1",
        "sluice-2",
    ]
    assert templates_of(made)["sluice-0"] == "sluice-share-1-3mi-0"


def test_no_name_comes_from_the_pods() -> None:
    """A pod may have dots in its name, which the name of a claim in its spec may not."""
    document = pod({GPU: "1", MEM: "4000", CORES: "30"})
    expected = admitted(document)["spec"]
    document["metadata"]["name"] = "train.v1.2"
    assert admitted(document)["spec"] == expected
    for one in expected["resourceClaims"]:
        for name in one.values():
            assert name.replace("-", "").isalnum()
            assert len(name) <= 63


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            pod({GPU: "1", PERCENT: "50"}),
            "cannot be expressed in a claim: request nvidia.com/gpumem",
        ),
        (pod({GPU: "33", MEM: "1"}), "33 exceed the limit of 32"),
        (pod({GPU: "1", MEM: "10G"}), "is in MiB: write 9536"),
        (
            pod({GPU: "1", MEM: "1"}, resourceClaims=[{"name": "sluice-0"}]),
            "names that begin with sluice- are taken",
        ),
    ],
)
def test_what_no_claim_can_say_is_refused(document: dict[str, Any], said: str) -> None:
    assert said in refusal(document)


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "nvidia.com/vgpu-mode"])
def test_choosing_among_cards_is_refused(key: str) -> None:
    document = pod({GPU: "1", MEM: "1"})
    document["metadata"]["annotations"] = {key: "mig"}
    assert f"metadata.annotations[{key}]" in refusal(document)


def test_off_nothing_of_it_happens() -> None:
    made = admitted(pod({GPU: "1", MEM: "1"}), Rules(scheduler="sluice-scheduler"))
    assert "resourceClaims" not in made["spec"]
    assert made["spec"]["schedulerName"] == "sluice-scheduler"


def test_a_template_divides_cards_and_never_gives_one_twice() -> None:
    devices = template_of(Share(2, 4000, 30))["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"cores": "30", "memory": "4000Mi"}
    assert devices["constraints"] == [{"requests": ["gpu"], "distinctAttribute": "sluice.dev/uuid"}]
    whole = template_of(Share(1, None, 100))["spec"]["spec"]["devices"]
    assert "constraints" not in whole
    assert "memory" not in whole["requests"][0]["exactly"]["capacity"]["requests"]


@given(st.integers(1, 32), st.integers(1, 10**8), st.integers(0, 100), st.sampled_from([1, 256]))
def test_quota_counts_a_claim_as_what_it_stands_for(
    count: int, memory: int, cores: int, factor: int
) -> None:
    devices = DeviceConfig(Nvidia(memory_factor=factor))
    memory = min(memory, 10**8 // factor)
    asked = pod({GPU: str(count), MEM: str(memory), CORES: str(cores)})
    made = admitted(asked, Rules(devices, claims=True))
    assert GPU not in made["spec"]["containers"][0]["resources"].get("limits", {})
    assert amounts(devices, made) == amounts(devices, asked)


@given(st.text() | st.from_regex(r"sluice-share-\d+-(whole|\d+mi)-\d+"))
def test_any_name_is_a_share_that_has_it_or_none(name: str) -> None:
    share = share_of(name)
    if share is not None:
        assert share.name == name
        assert 1 <= share.count <= 32
        assert 0 <= share.cores <= 100


def container(memory: int, **more: Any) -> dict[str, Any]:
    return {"name": f"m{memory}", "resources": {"limits": {GPU: "1", MEM: str(memory)}}, **more}


@pytest.mark.parametrize(
    ("before", "most"),
    [
        ([container(8000, restartPolicy="Always"), container(20000)], 28000),
        ([container(20000), container(8000, restartPolicy="Always")], 20000),
        ([container(8000, restartPolicy="Always")], 18000),
        ([container(5000)], 10000),
    ],
    ids=["a sidecar beside an init container", "one after it", "a sidecar", "an init container"],
)
def test_a_sidecar_counts_beside_the_init_containers_after_it(
    before: list[dict[str, Any]], most: int
) -> None:
    spec = {"initContainers": before, "containers": [container(10000)]}
    made = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}
    assert amounts(DeviceConfig(Nvidia()), made)[MEM] == most
