"""Pods that ask for shares of GPUs, placed by a stock kube-scheduler with the queue's extender."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, define
from tests.cluster.scheduling import (
    PODS,
    Fleet,
    bound,
    clear,
    given,
    gpu_pod,
    placement,
    replicas,
    scheduler,
    wait_bound,
    wait_refused,
)
from tests.kit.node import until

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
MIB = 1 << 20


@dataclass
class Lab:
    plane: ControlPlane
    replica: Replica
    fleet: Fleet
    place: Path

    def create(self, name: str, **how: object) -> None:
        self.plane.api.call("POST", PODS, gpu_pod(name, **how))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def lab(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    define(control_plane)
    place = tmp_path_factory.mktemp("scheduling")
    with replicas(control_plane, place, 1, "shares.scheduler=sluice-scheduler") as (replica,):
        fleet = Fleet(control_plane, {place / "0.sock": replica})
        for n in range(3):
            fleet.add(f"gpu-{n}", zone=f"z{n}")
        fleet.kinds["gpu-2"] = "NVIDIA A100-SXM4-80GB"
        until("it decides", replica.leads, 60)
        with fleet, scheduler(control_plane, place, replica.asked_port):
            until("all report", lambda: fleet.sessions_total >= 3, 60)
            yield Lab(control_plane, replica, fleet, place)


@pytest.fixture(autouse=True)
def empty(lab: Lab) -> Iterator[None]:
    yield
    clear(lab.plane)


def test_a_share_is_placed_and_written_at_the_pod(lab: Lab) -> None:
    lab.create("one", gpumem=8000, gpucores=30)
    pod = wait_bound(lab.plane, "one")
    place = placement(pod)
    (share,) = place["containers"]["main"]
    assert place["node"] == bound(pod)
    assert share["uuid"] in lab.fleet.uuids(bound(pod))
    assert (share["memory_bytes"], share["share_ppm"]) == (8000 * MIB, 300_000)


def test_nodes_carry_hamis_register_and_what_others_write_there_is_written_over(lab: Lab) -> None:
    key, api = "hami.io/node-nvidia-register", lab.plane.api

    def annotations() -> dict[str, str]:
        return dict(api.get("/api/v1/nodes/gpu-2")["metadata"].get("annotations") or {})

    until("it is registered", lambda: key in annotations(), 60)
    given = annotations()
    entries = json.loads(given[key])
    assert [one["id"] for one in entries] == lab.fleet.uuids("gpu-2")
    first = {"count": 10, "devmem": 80 * 1024, "devcore": 100, "health": True}
    assert entries[0] | first == entries[0]
    assert entries[0]["type"] == "NVIDIA A100-SXM4-80GB"
    assert given["hami.io/node-handshake"].startswith("Reported ")
    assert {one["uuid"] for one in json.loads(given["hami.io/node-nvidia-score"])} == {
        *lab.fleet.uuids("gpu-2")
    }
    version = api.get("/api/v1/nodes/gpu-2")["metadata"]["resourceVersion"]
    forged = {key: "[]", "hami.io/node-handshake": "Requesting_2026-11-23 10:00:00"}
    api.patch("/api/v1/nodes/gpu-2", {"metadata": {"annotations": forged}})
    until("the forged one is gone", lambda: annotations()[key] == given[key], 60)
    assert annotations()["hami.io/node-handshake"].startswith("Reported ")
    assert api.get("/api/v1/nodes/gpu-2")["metadata"]["resourceVersion"] > version


# As HAMi's own examples ask, by their field values.
def on(**annotations: str) -> dict[str, str]:
    """Annotations under HAMi's names; `_` stands for `-`."""
    return {f"nvidia.com/{key.replace('_', '-')}": value for key, value in annotations.items()}


KINDS: dict[str, dict[str, object]] = {
    "default-use": {"count": 1, "gpumem": 10240},
    "example": {"count": 1, "gpumem": 3000, "scheduler": "default-scheduler"},
    "use-memory-fraction": {"count": 1, "gpumem_percentage": 50},
    "use-sharing-card-1": {"count": 1, "gpumem_percentage": 40, "gpucores": 60},
    "use-sharing-card-2": {"count": 1, "gpumem_percentage": 60, "gpucores": 40},
    "specify-card-type-to-use": {"count": 1, "gpumem": 1000, "annotations": on(use_gputype="A100")},
    "specify-card-type-not-use": {
        "count": 1,
        "gpumem": 1000,
        "annotations": on(nouse_gputype="h100, a30"),
    },
    "specify-uuid-to-use": {
        "count": 1,
        "gpumem": 1000,
        "annotations": on(use_gpuuuid="GPU-gpu-1-2"),
    },
    "specify-uuid-not-use": {
        "count": 2,
        "gpumem": 1000,
        "annotations": on(nouse_gpuuuid="GPU-gpu-0-0,GPU-gpu-1-0"),
    },
    "specify-index-to-use": {"count": 1, "gpumem": 1000, "annotations": on(use_gpuindexes="0,1")},
    "specify-index-not-use": {
        "count": 2,
        "gpumem": 1000,
        "annotations": on(nouse_gpuindexes="0"),
    },
    "specify-scheduling-policy": {
        "count": 1,
        "gpumem": 3000,
        "annotations": {
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/gpu-scheduler-policy": "binpack",
        },
    },
    "sglang-gpu-sharing": {"count": 1, "gpumem": 12000, "gpucores": 30},
    "vllm-cross-vgpu": {"count": 2, "gpumem_percentage": 30, "gpucores": 30},
    "vulkan-example": {
        "count": 1,
        "gpumem": 1024,
        "gpucores": 30,
        "annotations": {"hami.io/vulkan": "true"},
    },
    "numa-bind": {"count": 1, "gpumem": 1000, "annotations": on(numa_bind="true")},
    "two-cards-with-cores": {"count": 2, "gpumem": 3000, "gpucores": 30},
    "default-use-legacy": {"count": 2},
    "use-as-normal": {"count": 2},
    "use-exclusive-card": {"count": 1, "gpucores": 100},
}
"""Whole cards last: they need empty ones. Pods that ask for MIG instances (mig-example,
dynamic-mig-…) are not the extender's."""


@pytest.mark.parametrize("profile", ["sluice-scheduler", "hami-scheduler"])
def test_pods_of_hamis_examples_are_placed_as_they_ask(lab: Lab, profile: str) -> None:
    for kind, asked in KINDS.items():
        lab.create(kind, **{"scheduler": profile, **asked})
    pods = {kind: wait_bound(lab.plane, kind) for kind in KINDS}
    for kind, pod in pods.items():
        shares = placement(pod)["containers"]["main"]
        assert len({one["uuid"] for one in shares}) == KINDS[kind]["count"], kind
    assert bound(pods["specify-card-type-to-use"]) == "gpu-2"
    assert bound(pods["specify-card-type-not-use"]) == "gpu-2"
    uuids = {
        kind: {one["uuid"] for one in placement(pod)["containers"]["main"]}
        for kind, pod in pods.items()
    }
    assert uuids["specify-uuid-to-use"] == {"GPU-gpu-1-2"}
    assert not uuids["specify-uuid-not-use"] & {"GPU-gpu-0-0", "GPU-gpu-1-0"}
    assert {one[-1] for one in uuids["specify-index-to-use"]} <= {"0", "1"}
    assert "0" not in {one[-1] for one in uuids["specify-index-not-use"]}
    half = placement(pods["use-memory-fraction"])["containers"]["main"][0]
    assert half["memory_bytes"] == lab.fleet.memory // 2
    alone = placement(pods["use-exclusive-card"])["containers"]["main"][0]["uuid"]
    assert given(list(pods.values()))[alone][2] == 1, "no other pod on that card"


def test_why_a_pod_is_not_placed_is_said_in_amounts(lab: Lab) -> None:
    lab.create("large", gpumem=100_000)
    said = wait_refused(lab.plane, "large")
    assert "0/3 nodes are available" in said
    assert "needs 1 GPU with 100000 MiB" in said
    assert "most free on one: 81920 of 100000 MiB" in said
    with pytest.raises(ApiError, match="must be one of binpack, spread"):  # as it is made
        lab.create("wrong", gpumem=1000, annotations={"hami.io/gpu-scheduler-policy": "best"})
    lab.create("foreign", gpumem=1000, annotations={"nvidia.com/use-gputype": "B200"})
    assert "do not match its GPU selection" in wait_refused(lab.plane, "foreign")


def test_what_is_cordoned_takes_nothing_new(lab: Lab) -> None:
    path, key = "/api/v1/nodes/gpu-0", "hami.io/device-cordon"
    cards = ",".join(lab.fleet.uuids("gpu-0"))
    lab.plane.api.patch(path, {"metadata": {"annotations": {key: cards}}})
    there = {"nodeSelector": {"zone": "z0"}}
    try:
        lab.create("kept-out", gpumem=1000, spec=there)
        assert "4 are cordoned" in wait_refused(lab.plane, "kept-out")
    finally:
        lab.plane.api.patch(path, {"metadata": {"annotations": {key: None}}})
    assert bound(wait_bound(lab.plane, "kept-out")) == "gpu-0"


def test_what_frees_room_lets_the_next_in(lab: Lab) -> None:
    for n in range(12):  # every card
        lab.create(f"whole-{n}", gpucores=100)
    for n in range(12):
        wait_bound(lab.plane, f"whole-{n}")
    lab.create("late", gpumem=1000)
    assert "are in exclusive use" in wait_refused(lab.plane, "late")
    lab.plane.api.call("DELETE", f"{PODS}/whole-3?gracePeriodSeconds=0")
    wait_bound(lab.plane, "late", 120)


def test_the_schedulers_own_rules_hold(lab: Lab) -> None:
    api = lab.plane.api
    spec = {"nodeSelector": {"zone": "z1"}}
    lab.create("in-a-zone", gpumem=1000, spec=spec)
    assert bound(wait_bound(lab.plane, "in-a-zone")) == "gpu-1"

    lab.create("much-cpu", gpumem=1000, cpu="65")
    assert "Insufficient cpu" in wait_refused(lab.plane, "much-cpu")

    taint = {"key": "keep", "value": "out", "effect": "NoSchedule"}
    for n in range(2):
        api.patch(f"/api/v1/nodes/gpu-{n}", {"spec": {"taints": [taint]}})
    try:
        tolerated = [{"key": "keep", "operator": "Exists"}]
        chosen = {"nodeSelector": {"zone": "z0"}, "tolerations": tolerated}
        lab.create("untainted", gpumem=1000)
        lab.create("tolerant", gpumem=1000, spec=chosen)
        assert bound(wait_bound(lab.plane, "untainted")) == "gpu-2"
        assert bound(wait_bound(lab.plane, "tolerant")) == "gpu-0"
    finally:
        for n in range(2):
            api.patch(f"/api/v1/nodes/gpu-{n}", {"spec": {"taints": None}})

    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "zone", "labelSelector": {"matchLabels": {"apart": "yes"}}}
            ]
        }
    }
    for n in range(3):
        pod = gpu_pod(f"apart-{n}", gpumem=1000, spec={"affinity": apart})
        pod["metadata"]["labels"] = {"apart": "yes"}
        api.call("POST", PODS, pod)
    assert len({bound(wait_bound(lab.plane, f"apart-{n}")) for n in range(3)}) == 3

    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "there-is-none"}}]
    lab.create("no-volume", gpumem=1000, spec={"volumes": volumes})
    assert "there-is-none" in wait_refused(lab.plane, "no-volume")


def test_containers_that_run_together_get_their_own_and_one_before_them_takes_of_theirs(
    lab: Lab,
) -> None:
    pod = gpu_pod("several", gpumem=30_000)
    main = pod["spec"]["containers"][0]
    pod["spec"]["containers"].append({**main, "name": "side"})
    pod["spec"]["initContainers"] = [{**main, "name": "first"}]
    lab.plane.api.call("POST", PODS, pod)
    place = placement(wait_bound(lab.plane, "several"))
    assert set(place["containers"]) == {"main", "side", "first"}
    assert place["before"] == ["first"]
    first = place["containers"]["first"][0]["uuid"]
    assert first in {place["containers"][one][0]["uuid"] for one in ("main", "side")}
    assert "beyond" not in place, "it takes no more than they do"


def test_where_sums_count_a_pod_of_higher_priority_displaces_others_and_budgets_are_kept(
    lab: Lab,
) -> None:
    """The rule is in docs/queue/scheduling.md under Preemption: kube-scheduler asks for victims
    then."""
    api, whole = lab.plane.api, lab.fleet.memory // MIB
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.call("POST", classes, {**high, "metadata": {"name": "high"}})
    for name in lab.fleet.names:
        sum_ = {"nvidia.com/gpumem": str(4 * whole)}
        status = {"capacity": sum_, "allocatable": sum_}
        api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    budget = {
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"minAvailable": 8, "selector": {"matchLabels": {"keep": "yes"}}},
    }
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    api.call("POST", budgets, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **budget})
    counted = {"disruptionsAllowed": 0, "currentHealthy": 8, "desiredHealthy": 8, "expectedPods": 8}
    api.patch(f"{budgets}/keep/status", {"status": counted})
    with scheduler(
        lab.plane, lab.place, lab.replica.asked_port, "summing", counted=["nvidia.com/gpumem"]
    ):
        for n in range(12):  # every card; those of two nodes are kept
            zone = {"nodeSelector": {"zone": f"z{n % 3}"}, "terminationGracePeriodSeconds": 0}
            pod = gpu_pod(f"low-{n}", scheduler="summing", gpumem=whole, spec=zone)
            pod["metadata"]["labels"] = {"keep": "no" if n % 3 == 2 else "yes"}
            api.call("POST", PODS, pod)
        for n in range(12):
            wait_bound(lab.plane, f"low-{n}")
        lab.create("equal", scheduler="summing", gpumem=whole)
        assert "Insufficient nvidia.com/gpumem" in wait_refused(lab.plane, "equal")
        lab.create("high", scheduler="summing", gpumem=whole, spec={"priorityClassName": "high"})
        place = placement(wait_bound(lab.plane, "high", 120))
    assert place["node"] == "gpu-2"
    left = {one["metadata"]["name"] for one in api.get(PODS)["items"]}
    assert {f"low-{n}" for n in range(12)} - left == {f"low-{n}" for n in (2, 5, 8, 11)} - left
    assert len({f"low-{n}" for n in range(12)} - left) == 1, "one has to go, and no more"


def test_only_who_shows_a_listed_certificate_may_ask(lab: Lab) -> None:
    lab.create("wanted", gpumem=1000, scheduler="nobody")
    pod = lab.plane.api.get(f"{PODS}/wanted")
    bind = {
        "PodName": "wanted",
        "PodNamespace": "default",
        "PodUID": pod["metadata"]["uid"],
        "Node": "gpu-0",
    }
    for certificate in (None, "stranger"):
        status, text = ask(lab, "bind", bind, certificate)
        assert status == 403, text
        assert "extender.callers" in text
    assert not bound(lab.plane.api.get(f"{PODS}/wanted"))
    status, text = ask(lab, "bind", bind, "scheduler")
    assert (status, json.loads(text)) == (200, {"Error": ""})
    assert bound(lab.plane.api.get(f"{PODS}/wanted")) == "gpu-0"


def ask(lab: Lab, verb: str, body: object, certificate: str | None) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(lab.place / "ca.crt"))
    if certificate is not None:
        context.load_cert_chain(lab.place / f"{certificate}.crt", lab.place / f"{certificate}.key")
    connection = http.client.HTTPSConnection(
        "localhost", lab.replica.asked_port, context=context, timeout=60
    )
    try:
        connection.request("POST", f"/scheduler/{verb}", json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_binding_that_is_refused_gives_its_gpus_back(lab: Lab) -> None:
    lab.create("twice", gpumem=80_000, scheduler="nobody")
    pod = lab.plane.api.get(f"{PODS}/twice")
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    head = {"name": "twice", "namespace": "default"}
    body = {
        "PodName": "twice",
        "PodNamespace": "default",
        "PodUID": pod["metadata"]["uid"],
        "Node": "gpu-0",
    }
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": head, "target": target}
    lab.plane.api.call("POST", f"{PODS}/twice/binding", binding)  # another scheduler was faster
    answer = json.loads(ask(lab, "bind", body, "scheduler")[1])
    assert "already assigned" in answer["Error"]
    for n in range(4):  # all four cards of the node are whole
        lab.create(f"whole-{n}", gpucores=100, spec={"nodeSelector": {"zone": "z0"}})
    for n in range(4):
        wait_bound(lab.plane, f"whole-{n}")


def test_an_autoscalers_question_with_whole_nodes_is_answered_with_them_and_changes_nothing(
    lab: Lab,
) -> None:
    nodes = lab.plane.api.get("/api/v1/nodes")["items"]
    before = lab.plane.api.get(PODS)["metadata"]["resourceVersion"]
    question = {"pod": gpu_pod("dry", gpumem=1000), "nodes": {"items": nodes}}
    status, text = ask(lab, "filter", question, "scheduler")
    answer = json.loads(text)
    assert status == 200
    assert {one["metadata"]["name"] for one in answer["Nodes"]["items"]} == {
        "gpu-0",
        "gpu-1",
        "gpu-2",
    }
    assert "NodeNames" not in answer
    pods = lab.plane.api.get(PODS)
    assert pods["items"] == []
    assert pods["metadata"]["resourceVersion"] >= before
