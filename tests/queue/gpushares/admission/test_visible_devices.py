"""NVIDIA_VISIBLE_DEVICES of containers without a GPU: void or refused by a policy, whatever way it is set."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.gpushares.admission import (
    Answer,
    Question,
    Quotas,
    Rules,
    VisibleDevices,
    admit,
    answer,
    counted,
)
from tests.queue.gpushares.admission.pods import env_of, pod

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
ALLOW, VOID, REFUSE = (
    Rules(scheduler="sluice-scheduler", visible_devices=one) for one in VisibleDevices
)
GPU = "nvidia.com/gpu"
ALL = {"name": VARIABLE, "value": "all"}
SECRET = {"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}


def one(limits: dict[str, Any], *env: dict[str, Any], **annotations: str) -> dict[str, Any]:
    document = pod(limits, **annotations)
    if env:
        document["spec"]["containers"][0]["env"] = list(env)
    return document


def listed(document: Any) -> list[dict[str, Any]]:
    return list(document["spec"]["containers"][0].get("env") or [])


@pytest.mark.parametrize(
    "own", [ALL, SECRET, {"name": VARIABLE, "value": "0"}, {"name": VARIABLE, "value": "$(X)"}]
)
def test_a_container_without_a_gpu_shows_none(own: dict[str, Any]) -> None:
    other = {"name": "X", "value": "all"}
    document = one({"cpu": 1}, other, own)
    assert admit(ALLOW, document, "u", "t").pod == document
    verdict = admit(VOID, document, "u", "t")
    assert listed(verdict.pod) == [other, {"name": VARIABLE, "value": "void"}]
    assert f"container c0: env {VARIABLE}" in verdict.warnings[0]
    (problem,) = admit(REFUSE, document, "u", "t").problems
    assert str(problem).startswith(f"container c0: env {VARIABLE}: ")
    assert problem.fix == "take it out, or request nvidia.com/gpu"


@pytest.mark.parametrize("rules", [VOID, REFUSE], ids=["void", "refuse"])
def test_images_set_it_to_all_so_it_is_set_in_each_container_without_a_gpu(rules: Rules) -> None:
    others = (
        {"nvidia.com/mig-1g.10gb": 1},
        {"nvidia.com/gpu.shared": 1},
        {"nvidia.com/priority": 0, "nvidia.com/rdma": 1},
    )
    document = pod({"cpu": 1}, {GPU: 1}, {GPU: 0}, *others)
    document["spec"]["initContainers"] = [{"name": "first", "image": "none"}]
    made: Any = admit(rules, document, "u", "t").pod
    assert [env_of(made, at) for at in range(6)] == [
        {VARIABLE: "void"},
        {},
        {VARIABLE: "void"},
        {},
        {},
        {VARIABLE: "void"},
    ]
    assert made["spec"]["initContainers"][0]["env"] == [{"name": VARIABLE, "value": "void"}]


@pytest.mark.parametrize("value", ["", "void", "none"])
def test_what_shows_none_stays(value: str) -> None:
    document = one({"cpu": 1}, {"name": VARIABLE, "value": value})
    assert admit(REFUSE, document, "u", "t").pod == document


def test_the_last_of_two_is_not_the_only_one_that_counts() -> None:
    document = one({"cpu": 1}, ALL, {"name": VARIABLE, "value": "void"})
    assert admit(REFUSE, document, "u", "t").problems
    assert listed(admit(VOID, document, "u", "t").pod) == [{"name": VARIABLE, "value": "void"}]


@pytest.mark.parametrize("rules", [VOID, REFUSE], ids=["void", "refuse"])
@pytest.mark.parametrize(
    ("limits", "annotations"), [({GPU: 1}, {}), ({"cpu": 1}, {"gpu-fraction": "0.5"})]
)
def test_a_container_with_a_share_has_what_its_grant_sets(
    rules: Rules, limits: dict[str, Any], annotations: dict[str, str]
) -> None:
    other = {"name": "X", "value": "all"}
    verdict = admit(rules, one(limits, other, ALL, **annotations), "u", "t")
    assert not verdict.problems
    assert listed(verdict.pod) == [other]
    assert any(
        "is left out: the device plugin or the claim sets it" in each for each in verdict.warnings
    )


def test_the_users_own_label_is_no_way_around() -> None:
    document = one({"cpu": 1}, ALL)
    document["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert admit(REFUSE, document, "u", "t").problems
    assert env_of(admit(VOID, document, "u", "t").pod) == {VARIABLE: "void"}
    assert admit(ALLOW, document, "u", "t").pod == document


def debugged(rules: Rules, env: list[dict[str, Any]]) -> Answer:
    before, after = pod({"cpu": 1}), pod({"cpu": 1})
    before["spec"]["ephemeralContainers"] = [{"name": "old", "image": "none", "env": [ALL]}]
    after["spec"]["ephemeralContainers"] = [
        {"name": "new", "image": "none", "env": env},
        *before["spec"]["ephemeralContainers"],
    ]
    return answer(
        rules, Quotas(counted(rules.devices)), Question(after, before, "team", "u", "t"), 0
    )


def test_neither_is_kubectl_debug() -> None:
    assert VARIABLE in str(debugged(REFUSE, [ALL]).problems[0])
    made = debugged(VOID, [ALL])
    assert not made.problems
    assert b"/spec/ephemeralContainers/0/env" in made.patch
    assert b"/spec/ephemeralContainers/1" not in made.patch
    assert debugged(ALLOW, [ALL]).patch == b"[]"


def test_a_malformed_environment_is_for_the_api_server_to_report() -> None:
    document = pod({"cpu": 1})
    document["spec"]["containers"][0]["env"] = "all"
    assert admit(VOID, document, "u", "t").pod == document
