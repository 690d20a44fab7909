"""Pods that ask in HAMi's words, where the cluster gives its GPUs to claims (`shares.as_claims`): a real API server and scheduler,
a node of which there are only objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.dra.published import (
    RESOURCE,
    allocated,
    claims,
    claims_of,
    device_class,
    gpu_node,
)
from tests.cluster.queueing import apply, asked
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/team/pods"
TEMPLATES = f"{RESOURCE}/namespaces/team/resourceclaimtemplates"
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as made,
    ):
        if int(made.programs.version.split(".")[1]) < 36:
            pytest.skip(f"Kubernetes {made.programs.version} has no shares of a device by default")
        apply(made, device_class("gpu.sluice.dev"))
        apply(made, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        gpu_node(made, "n1", "80Gi", "80Gi")
        with asked(made, tmp_path_factory.mktemp("queue"), "shares.as_claims=true"):

            def is_asked() -> bool:
                answer: Any = made.api.call(
                    "POST", f"{PODS}?dryRun=All", pod("try", {GPU: 1, MEM: 1})
                )
                return bool(answer["spec"].get("resourceClaims"))

            until("pods are asked about", is_asked, 60)
            assert not made.api.get(TEMPLATES)["items"], "for a trial nothing is made"
            yield made


@pytest.fixture(autouse=True)
def over(plane: ControlPlane) -> Iterator[None]:
    yield
    for one in plane.api.get(PODS)["items"]:
        plane.api.delete(f"{PODS}/{one['metadata']['name']}", 0)
    until("no claim is left", lambda: not claims(plane, "team"), 60)


def pod(name: str, *limits: dict[str, int], **annotations: str) -> dict[str, Any]:
    """A container for each of `limits`."""
    containers = [
        {
            "name": f"c{at}",
            "image": "none",
            "resources": {"limits": {key: str(value) for key, value in one.items()}},
        }
        for at, one in enumerate(limits)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "annotations": annotations},
        "spec": {"containers": containers, "tolerations": [{"operator": "Exists"}]},
    }


def test_a_share_is_given_by_a_claim(plane: ControlPlane) -> None:
    made = plane.api.create("pods", "team", pod("one", {GPU: 1, MEM: 4000, CORES: 30, "cpu": 1}))
    (claim,) = made["spec"]["resourceClaims"]
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "1"}
    assert resources["claims"] == [{"name": claim["name"]}]
    assert made["spec"]["schedulerName"] == "default-scheduler"
    (result,) = allocated(plane, "one", "team")
    assert result["consumedCapacity"] == {"memory": "4000Mi", "cores": "30"}
    # Another that asks for the same has it from the same template.
    plane.api.create("pods", "team", pod("two", {GPU: 1, MEM: 4000, CORES: 30}))
    allocated(plane, "two", "team")
    (template,) = plane.api.get(TEMPLATES)["items"]
    assert template["metadata"]["name"] == claim["resourceClaimTemplateName"]
    # One that was taken away is made again.
    plane.api.delete(f"{TEMPLATES}/{template['metadata']['name']}")
    plane.api.create("pods", "team", pod("three", {GPU: 1, MEM: 4000, CORES: 30}))
    allocated(plane, "three", "team")


def test_two_gpus_are_two_cards_and_each_container_has_its_own(plane: ControlPlane) -> None:
    plane.api.create("pods", "team", pod("both", {GPU: 2, MEM: 1000}, {GPU: 1}, {"cpu": 1}))
    made = plane.api.get(f"{PODS}/both")
    assert len(made["spec"]["resourceClaims"]) == 2
    assert "claims" not in made["spec"]["containers"][2]["resources"]
    until("both claims are there", lambda: len(claims_of(plane, "both", "team")) == 2, 30)
    assert condition_of(plane, "both"), "a whole card and a part of each is more than there is"
    plane.api.delete(f"{PODS}/both", 0)
    plane.api.create("pods", "team", pod("pair", {GPU: 2, MEM: 1000}))
    results = allocated(plane, "pair", "team")
    assert sorted(one["device"] for one in results) == ["gpu-0", "gpu-1"]
    assert {one["consumedCapacity"]["memory"] for one in results} == {"1000Mi"}


def condition_of(plane: ControlPlane, name: str) -> str:
    """Why the scheduler did not place it."""

    def said() -> str:
        status = plane.api.get(f"{PODS}/{name}")["status"]
        found = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
        return str(found[0].get("message", "")) if found else ""

    return until(f"{name} is told", said, 60)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (pod("part", {GPU: 1, "nvidia.com/gpumem-percentage": 50}), "expressed in a claim"),
        (
            pod("chosen", {GPU: 1, MEM: 1}, **{"nvidia.com/use-gputype": "H100"}),
            "is not supported with claims",
        ),
        (pod("many", {GPU: 33, MEM: 1}), "33 exceed the limit of 32 per claim"),
    ],
    ids=["a percentage", "a kind of card", "too many"],
)
def test_what_no_claim_can_say_is_refused(
    plane: ControlPlane, document: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiError, match=said):
        plane.api.create("pods", "team", document)


def test_quota_counts_what_claims_stand_for(plane: ControlPlane) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}}  # fmt: skip
    apply(plane, {**quota, "spec": {"hard": {f"limits.{MEM}": "6000"}}})
    try:

        def is_kept() -> bool:
            try:
                plane.api.call("POST", f"{PODS}?dryRun=All", pod("try", {GPU: 1, MEM: 7000}))
            except ApiError:
                return True
            return False

        until("the quota is known", is_kept, 30)
        plane.api.create("pods", "team", pod("first", {GPU: 1, MEM: 4000}))
        allocated(plane, "first", "team")
        with pytest.raises(ApiError, match="namespace team"):
            plane.api.create("pods", "team", pod("second", {GPU: 1, MEM: 4000}))
    finally:
        plane.api.delete("/api/v1/namespaces/team/resourcequotas/q")
