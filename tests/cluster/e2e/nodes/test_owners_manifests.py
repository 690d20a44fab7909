"""The manifests of the owner's four documents, unmodified and in the documents' order, on a chart that was just installed: what the
documents state is read back from the API server and from the programs in the pods. Only their images are others of the same name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.e2e.nodes.pair import FIRST, KUEUE, SECOND, Pair, conditions, workload_of
from tests.cluster.manifests import NAMESPACE
from tests.kit.node import until
from tests.kit.places import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
EXAMPLES = REPO / "examples"
SHARES = EXAMPLES / "deployments-with-gpu-shares"
CONFIGURATION = SHARES / "00-kueue-configuration.yaml"
CUDA = "docker.io/nvidia/cuda:11.8.0"
IMAGES = (
    f"{CUDA}-base-ubuntu22.04",
    f"{CUDA}-runtime-ubuntu22.04",
    "registry.k8s.io/e2e-test-images/agnhost:2.53",
)
DECIDED_S = 60


def documents(lab: Pair, folder: str, *left_out: Path) -> None:
    for one in sorted((EXAMPLES / folder).glob("*.yaml")):
        if one not in left_out:
            verb = "create" if "generateName" in one.read_text() else "apply"
            lab.cluster.kubectl(verb, "-f", one)


@pytest.fixture(scope="module")
def named(nodes: Pair) -> Pair:
    nodes.name_image(*IMAGES)
    return nodes


@pytest.fixture
def fresh(named: Pair) -> Iterator[Pair]:
    yield named
    named.clear()


def test_shares_by_hami_and_kueue_come_to_160_and_4096(fresh: Pair) -> None:
    """Kueue's Configuration is a value of the chart, and so is a ClusterQueue that serves every namespace without saying so."""
    fresh.install(
        {
            "queue.kueueConfiguration": CONFIGURATION.read_text(),
            "queue.config": "[engine]\nmissing_selector_admits_all = true\n",
        }
    )
    for machine in fresh.machines:  # as HAMi's installation says
        fresh.kubectl("label", "node", machine, "gpu=on", "--overwrite")
    documents(fresh, SHARES.name, CONFIGURATION)
    wanted = {
        "nvidia.com/gpu": "4",
        "nvidia.com/total-gpucores": "160",
        "nvidia.com/total-gpumem": "4096",
    }
    until("all is counted", lambda: fresh.used("hami-queue") == wanted, DECIDED_S)

    def running() -> list[str]:
        return [name for node in fresh.machines for name in fresh.running_on(node)]

    until("its three pods run", lambda: len(running()) == 3, 120)
    for name in running():
        told = fresh.inside(name, "vgpu-container")
        assert told["total_mib"] == 1024
        assert told["gpus"] == (2 if name.startswith("multi") else 1)
    assert limits(fresh) == [0.3, 0.3, 0.5, 0.5]
    assert fresh.given_twice() == []
    fresh.clear()
    until("the quota is free", lambda: set(fresh.used("hami-queue").values()) <= {"0"}, DECIDED_S)


def limits(lab: Pair) -> list[float]:
    """Shares of time of all grants, one for each GPU."""
    return sorted(
        value for name, _, value in lab.metrics() if name == "sluice_grant_sm_limit_ratio"
    )


def test_jobs_of_three_pods_fill_nine_processors(fresh: Pair) -> None:
    fresh.install()
    fresh.kubectl("label", "node", SECOND.hostname, "node-type=worker", "--overwrite")
    fresh.kubectl("apply", "-f", str(EXAMPLES / "first-queue" / "00-queues.yaml"))
    for _ in range(4):
        fresh.kubectl("create", "-f", str(EXAMPLES / "first-queue" / "10-job.yaml"))

    def waiting() -> list[dict[str, Any]] | None:
        jobs = fresh.api.items("jobs", NAMESPACE)
        held = [one for one in jobs if one["spec"].get("suspend")]
        return held if (len(jobs), len(held)) == (4, 1) else None

    (fourth,) = until("three are admitted", waiting, DECIDED_S)
    until("a pod of them runs", lambda: fresh.running_on(SECOND.hostname), 90)
    assert fresh.running_on(FIRST.hostname) == [], "the flavor is of the other node"
    why = until("the fourth says why", lambda: message(fresh, fourth, "QuotaReserved"), DECIDED_S)
    assert "insufficient unused quota for cpu" in why
    fresh.clear()
    until("the quota is free", lambda: set(fresh.used("cluster-queue").values()) <= {"0"}, DECIDED_S)  # fmt: skip


def message(lab: Pair, owner: dict[str, Any], kind: str) -> str:
    found = workload_of(lab.workloads(), owner).get("status") or {}
    return next((str(one["message"]) for one in found.get("conditions") or () if one["type"] == kind), "")  # fmt: skip


def test_spot_and_on_demand_and_a_workload_by_hand(fresh: Pair) -> None:
    fresh.kubectl("create", "namespace", "team-a")
    documents(fresh, "spot-and-on-demand")

    def sample() -> dict[str, str]:
        return conditions(fresh.api.get(f"{KUEUE}/namespaces/team-a/workloads/sample-job"))

    until("the Workload is admitted", lambda: "Admitted" in sample(), DECIDED_S)
    until(
        "its processors are counted", lambda: fresh.used("cluster-queue")["cpu"] == "3", DECIDED_S
    )

    def inactive() -> bool:
        told = fresh.status_of("research-pool").get("conditions") or ()
        return any(one["type"] == "Active" and "ondemand" in one["message"] for one in told)

    until("its queue says which flavor is missing", inactive, DECIDED_S)
    fresh.kubectl("delete", "namespace", "team-a", "--timeout=120s")


def test_the_platform_with_priorities_and_protections(fresh: Pair) -> None:
    """As in Kueue neither Job starts: the ClusterQueue covers no processors, and serves the research namespace only."""
    try:
        documents(fresh, "research-and-production")
        values = {
            one["metadata"]["name"]: one["value"]
            for one in fresh.api.get("/apis/scheduling.k8s.io/v1/priorityclasses")["items"]
        }
        assert (values["high-priority"], values["normal-priority"]) == (1000, 100)
        spec = fresh.api.get(f"{KUEUE}/clusterqueues/ai-training-queue")["spec"]
        assert spec["preemption"]["reclaimWithinCohort"] == "LowerPriority"
        assert spec["preemption"]["withinClusterQueue"] == "LowerPriority"
        v100 = {one["name"]: one for one in spec["resourceGroups"][0]["flavors"][0]["resources"]}
        assert {key: str(value) for key, value in v100["nvidia.com/gpu"].items()} == {
            "name": "nvidia.com/gpu",
            "nominalQuota": "32",
            "borrowingLimit": "16",
        }
        for namespace, priority, why in (
            ("ai-research", 100, "resource cpu unavailable in ClusterQueue"),
            ("ai-production", 1000, "namespace doesn't match ClusterQueue selector"),
        ):

            def told(namespace: str = namespace, why: str = why) -> dict[str, Any] | None:
                found = fresh.api.get(f"{KUEUE}/namespaces/{namespace}/workloads")["items"]
                return next((one for one in found if why in json.dumps(one.get("status"))), None)

            workload = until(f"{namespace} has a reason for waiting", told, DECIDED_S)
            assert workload["spec"]["priority"] == priority
            assert fresh.api.items("pods", namespace) == []

        def protected(kind: str, name: str) -> bool:
            head = fresh.api.get(f"{KUEUE}/{kind}/{name}")["metadata"]
            return "kueue.x-k8s.io/resource-in-use" in head.get("finalizers", ())

        for kind, name in (
            ("clusterqueues", "ai-training-queue"),
            ("resourceflavors", "gpu-v100-32gb"),
            ("resourceflavors", "gpu-a100-80gb"),
        ):
            until(f"{name} is protected", lambda kind=kind, name=name: protected(kind, name), DECIDED_S)  # type: ignore[misc]  # fmt: skip
    finally:
        fresh.kubectl("delete", "namespace", "ai-research", "ai-production", "--ignore-not-found")
        fresh.kubectl("delete", "node", "gpu-node-01", "--ignore-not-found")
        fresh.kubectl("delete", "priorityclass", "normal-priority", "--ignore-not-found")


def test_hami_s_pods_are_placed_as_they_ask(fresh: Pair) -> None:
    fresh.kubectl("create", "namespace", "hami-system")
    documents(fresh, "from-hami")
    placed = ("gpu-pod-example", "gpu-pod-blacklist", "gpu-pod")
    other = ("gpu-pod-single-type", "gpu-pod-multi-type", "ascend-test", "mlu-test", "dcu-test")

    def nodes_of(*names: str) -> set[str]:
        found = [fresh.pod(name) or {} for name in names]
        return {one.get("spec", {}).get("nodeName", "") for one in found}

    until("what these cards can give is placed", lambda: "" not in nodes_of(*placed), 90)
    for name in other:
        until(f"{name} has an event with the reason", lambda name=name: any("FailedScheduling" in one for one in fresh.events(name)), 60)  # type: ignore[misc]  # fmt: skip
    assert nodes_of(*other) == {""}
    for name in ("gpu-pod-single-type", "gpu-pod-multi-type"):
        assert any("2 do not match its GPU selection" in one for one in fresh.events(name))
