"""Pods in KAI's words and pods that show themselves GPUs, made at a real API server: honoured, or refused by the name of what they say.
Jobs of a queue are counted with the fractions of their pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import DEADLINE_S, WORKLOADS, apply, asked, door, is_true, job, of_kueue
from tests.kit.node import until
from tests.kit.places import REPO

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/team/pods"
GPU, MEM, PCT, CORES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
)
REQUEST, LIMIT = (
    "nvidia.com/container.main.gpu-memory.request",
    "nvidia.com/container.main.gpu-memory.limit",
)
DELAY = "kai.scheduler/preemption-delay"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"
ALL = [{"name": VARIABLE, "value": "all"}]
NAMESPACES = ("team", "drivers")


@pytest.fixture(scope="module")
def plane(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("words")
    settings = (
        "shares.scheduler=sluice-scheduler",
        "shares.visible_devices=refuse",
    )
    with asked(control_plane, place, *settings):
        for name in NAMESPACES:
            labels = {"hami.io/webhook": "ignore"} if name == "drivers" else {}
            account = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": name},
            }
            head = {"name": name, "labels": labels}
            apply(
                control_plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": head}, account
            )

        def is_asked() -> bool:
            return "env" in tried(control_plane, pod("try"))["spec"]["containers"][0]

        until("pods are asked about", is_asked, 60)
        yield control_plane


def pod(
    name: str,
    env: list[dict[str, Any]] | None = None,
    limits: dict[str, str] | None = None,
    **annotations: str,
) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": limits or {"cpu": "1"}},
        "env": env or [],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "annotations": annotations},
        "spec": {"containers": [container]},
    }


def tried(plane: ControlPlane, document: dict[str, Any]) -> Any:
    space = document["metadata"]["namespace"]
    return plane.api.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", document)


def limits(made: Any, container: int = 0) -> dict[str, str]:
    found = made["spec"]["containers"][container]["resources"].get("limits") or {}
    return {name: amount for name, amount in found.items() if name.startswith("nvidia.com/")}


def test_kais_manifests_are_taken_as_they_are(plane: ControlPlane) -> None:
    """Their scheduler's name is another setting's, a list, which no flag gives: tests/queue/gpushares has it."""
    documents = yaml.safe_load_all((REPO / "examples" / "from-kai" / "10-pods.yaml").read_text())
    made = []
    for one in documents:
        one["metadata"]["namespace"] = "team"
        assert one["spec"].pop("schedulerName") == "kai-scheduler"
        made.append(plane.api.create("pods", "team", one))
    half, two, elastic = made
    assert {one["spec"]["schedulerName"] for one in made} == {"sluice-scheduler"}
    assert limits(half) == {GPU: "1", PCT: "50", CORES: "0"}
    assert limits(two) == {}
    assert limits(two, 1) == {GPU: "2", MEM: "4096", CORES: "0"}
    assert limits(elastic) == {GPU: "1", MEM: "8192", CORES: "0"}
    assert elastic["metadata"]["annotations"]["request.sluice.dev/main"] == "gpumem=4096"


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        ({REQUEST: "8Gi", LIMIT: "4Gi"}, f"{REQUEST}: 8192 MiB are more than the limit"),
        (
            {"nvidia.com/container.other.gpu-memory.limit": "4Gi"},
            "must be one of main, got 'other'",
        ),
        (
            {"gpu-fraction": "0.5", "kai.scheduler/gpu-compute-sharing-mode": "sm-sharing"},
            "write time-slicing",
        ),
        (
            {"gpu-fraction": "0.5", DELAY: "300"},
            f"{DELAY}: expected a duration from 0s to 168h, such as 5m",
        ),
        ({"nvidia.com/container.main.gpus.devices": "GPU-1"}, "only the scheduler may write it"),
        (
            {"nvidia.com/container.main.gpu-compute.request": "0.5"},
            "the resource nvidia.com/gpucores",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(
    plane: ControlPlane, annotations: dict[str, str], why: str
) -> None:
    with pytest.raises(ApiError) as refused:
        tried(plane, pod("wrong", **annotations))
    assert why in str(refused.value)


def test_a_job_is_counted_with_its_pods_fractions(plane: ControlPlane) -> None:
    covered = ["cpu", GPU, MEM]
    amounts = {"cpu": "10", GPU: "10", MEM: "5000"}
    resources = [{"name": name, "nominalQuota": amounts[name]} for name in covered]
    flavors = [{"name": "plain", "resources": resources}]
    spec = {
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
        "namespaceSelector": {},
    }
    apply(
        plane,
        of_kueue("ResourceFlavor", "plain", {}),
        of_kueue("ClusterQueue", "gpus", spec),
        door("lq", "gpus"),
    )
    for name in ("first", "second"):
        document = job(name, "lq")
        document["spec"]["template"]["metadata"] = {"annotations": {"gpu-memory": "3000"}}
        apply(plane, document)

    def admitted() -> list[str]:
        every = plane.api.get(WORKLOADS)["items"]
        return [one["metadata"]["name"] for one in every if is_true(one, "Admitted")]

    until("one is admitted", admitted, DEADLINE_S)
    (name,) = admitted()
    (usage,) = plane.api.get(f"{WORKLOADS}/{name}")["status"]["admission"]["podSetAssignments"]
    assert usage["resourceUsage"] == {"cpu": "1", GPU: "1", MEM: "3k"}

    def waits() -> bool:
        every = plane.api.get(WORKLOADS)["items"]
        texts = [
            each["message"]
            for one in every
            for each in (one.get("status") or {}).get("conditions") or ()
        ]
        return any(f"insufficient unused quota for {MEM}" in text for text in texts)

    until("the other waits for memory", waits, DEADLINE_S)
    assert admitted() == [name]


def test_a_pod_without_a_gpu_shows_itself_none(plane: ControlPlane) -> None:
    made = plane.api.create("pods", "team", pod("plain"))
    assert made["spec"]["containers"][0]["env"] == [{"name": VARIABLE, "value": "void"}]
    reference = [{"name": VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]
    ignoring = pod("labelled", ALL)
    ignoring["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    for document in (pod("all", ALL), pod("by-reference", reference), ignoring):
        with pytest.raises(ApiError) as refused:
            tried(plane, document)
        assert f"container main: env {VARIABLE}" in str(refused.value)
    share = tried(plane, pod("share", ALL, {GPU: "1", MEM: "1"}))
    assert not share["spec"]["containers"][0].get("env"), "its grant sets it"
    ours = pod("driver", ALL)
    ours["metadata"]["namespace"] = "drivers"
    assert tried(plane, ours)["spec"]["containers"][0]["env"] == ALL


def test_nor_does_one_that_is_added_to_debug_it(plane: ControlPlane) -> None:
    made = plane.api.create("pods", "team", pod("debugged"))
    made["spec"]["ephemeralContainers"] = [{"name": "debugger", "image": "none", "env": ALL}]
    path = f"{PODS}/debugged/ephemeralcontainers"
    with pytest.raises(ApiError, match=f"container debugger: env {VARIABLE}"):
        plane.api.call("PUT", path, made)
    del made["spec"]["ephemeralContainers"][0]["env"]
    after: Any = plane.api.call("PUT", path, made)
    assert after["spec"]["ephemeralContainers"][0]["env"] == [{"name": VARIABLE, "value": "void"}]
